"""What the numbers of classes mean: 0 is normal, 1 … are kinds of defect, −1 is unknown or no image of the product."""

NORMAL = 0
UNKNOWN = -1
NOT_THIS_PRODUCT = "not this product"  # name of an image of label −1 that shows something else, or a spoilt frame


def default_name(label: int) -> str:
    """What a class is called until a person names it.

    Examples
    --------
    >>> default_name(NORMAL), default_name(3), default_name(UNKNOWN)
    ('normal', 'class 3', 'unknown')
    """
    return {NORMAL: "normal", UNKNOWN: "unknown"}.get(label, f"class {label}")
