"""Single stages of the method as commands of their own: maps (`detect`), masks (`binarize`)."""
