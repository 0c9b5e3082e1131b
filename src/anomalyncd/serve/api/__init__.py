"""The HTTP API of `anomalyncd serve`: images in, classes out. `make_api` is in `app`, which needs the extra `serve`."""
