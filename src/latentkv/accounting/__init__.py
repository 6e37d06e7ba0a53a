"""Whole models counted: the tree of components, and every tensor of the checkpoint. No torch."""

from .tensors import Tensor, digest, tensors
from .tree import Node, Total, Tree, tree

__all__ = ["Node", "Tensor", "Total", "Tree", "digest", "tensors", "tree"]
