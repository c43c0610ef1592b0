"""The book: a static web site made of the executed notebooks of a profile.

`sources` collects what was executed, `pages` and `landing` write what Sphinx reads, `build` calls it. No page asks for
anything outside its folder, so the site opens from a file as well as from a server.
"""
