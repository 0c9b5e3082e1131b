"""Images as they arrive: classed once each, written down, and told to others."""
