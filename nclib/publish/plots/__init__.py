"""How everything looks: the style, and the few kinds of picture the papers need."""
