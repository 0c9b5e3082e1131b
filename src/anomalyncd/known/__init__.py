"""What people know before or while classes are found: kinds with names, examples of them, and labels that look wrong."""
