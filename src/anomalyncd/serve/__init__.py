"""The review page and the HTTP API behind it. `make_app` is in `review`, which needs the extra `serve`."""
