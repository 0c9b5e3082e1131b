"""Where files lie: folders of this machine, tar archives, object stores. `names` says which a name means."""
