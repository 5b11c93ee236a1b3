"""The GPU's units or its memory are not used well."""
