"""The web site: the executed notebooks of a profile, the pages of the book and the reference, made by Sphinx.

`sources` lays out what Sphinx reads, `build` calls Sphinx.
"""
