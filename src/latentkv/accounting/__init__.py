"""Whole models counted: the tree of components, every tensor, and the checkpoint. No torch."""

from .reconcile import Difference, Report, Side, reconcile, totals
from .storage import Tensor
from .tensors import digest, tensors
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
    "reconcile",
    "tensors",
    "totals",
    "tree",
]
