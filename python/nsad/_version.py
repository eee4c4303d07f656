"""The version of a checkout; tools/make-wheel writes that of the release."""
__version__ = "0.0.0+checkout"
