"""Certificates on Wu et al. (NeurIPS 2024). Its text was not at hand: they are about its abstract and its
discussion.
"""
