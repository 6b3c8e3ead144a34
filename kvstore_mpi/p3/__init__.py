"""Priority-based slices (P3, Jayarajan et al., SysML 2019) as pure code."""
