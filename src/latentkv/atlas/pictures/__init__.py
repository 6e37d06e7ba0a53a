"""Pictures as strings: each function returns one ``<svg>`` element. No torch.

A picture is 340 units wide and takes the width that it is given; its smallest text is 11 units.
It has no colours, only classes for a stylesheet:

=================  ===============================================================
class              what it is
=================  ===============================================================
picture            the ``<svg>`` element
ink, muted         text and markers, and the less important ones: sets ``fill``
line, accent       rules, arrows and frames, and the important ones: sets ``stroke``
fill-a, -b, -c     areas behind text: sets ``fill`` (and ``stroke``, if wanted)
mark               what a rounding drops: sets ``fill`` and ``stroke``
=================  ===============================================================

Without a stylesheet all of it is drawn in the text's colour, areas as outlines. Nothing depends on
a colour alone: areas carry letters, lines dashes, markers and labels.
"""

from .context import plot, table
from .record import diagram
from .rounding import chain
from .shares import bar

__all__ = ["bar", "chain", "diagram", "plot", "table"]
