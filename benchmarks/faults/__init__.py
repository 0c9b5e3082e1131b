"""Bad days made on purpose: kills, full disks, lost and damaged files, malformed inputs."""
