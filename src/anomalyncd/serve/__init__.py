"""Classes of images over HTTP. Needs the extra `serve`; `guard` is shared with the review page."""
