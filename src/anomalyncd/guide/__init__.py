"""What a person should look at: regions whose class would teach most, classes that may be one or two, copies of images."""
