"""The version, read by the build and by `foretrace --version`."""

__version__ = "0.1.0"
