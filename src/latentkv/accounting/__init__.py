"""Whole models counted: the tree of components, every tensor, and the checkpoint. No torch."""

from .reconcile import Difference, Report, Side, found, reconcile
from .tensors import Tensor, digest, tensors
from .tree import Node, Total, Tree, tree

__all__ = [
    "Difference",
    "Node",
    "Report",
    "Side",
    "Tensor",
    "Total",
    "Tree",
    "digest",
    "found",
    "reconcile",
    "tensors",
    "tree",
]
