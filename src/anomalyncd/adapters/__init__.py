"""Other people's detectors behind our protocol."""
