"""What is made of a few images at a time, here or by workers: maps, tokens, ranges of maps, shards of regions."""
