"""What lies at a URL: told, listed and read through fsspec.

Addresses here are whole, with what they may hold of credentials: errors are in words of our own, and have no address in them.
Nothing is written: neither to the address nor, but for a copy that goes with the process, to a disk.
"""
