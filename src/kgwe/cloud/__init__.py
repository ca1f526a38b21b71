"""Clouds: instances bought and returned behind one Protocol, with a module or package per cloud.

Apps import it. It decides nothing: which nodes to buy is decided in `scaling`.
"""
