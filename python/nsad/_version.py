"""The version of the checkout; tools/make-wheel writes the release's."""
__version__ = "0.0.0+checkout"
