# SPDX-License-Identifier: BSD-2-Clause
"""Migen's grouping of statements by what they drive, in linear time.

The conversion to Verilog asks three times which combinational statements share a target; Migen merges lists of sets for
each statement, a third of the time that a whole engine takes.
"""
from litex.gen.fhdl import verilog
from migen.fhdl.tools import flat_iteration, list_targets


def group_by_targets(statements):
    """[(targets, statements)], each statement with all that share a target with it; as migen.fhdl.tools.group_by_targets.

    Statements keep their order; a group stands where its last statement does.
    """
    flat  = list(flat_iteration(statements))
    sets  = [set(list_targets(statement)) for statement in flat]
    above = list(range(len(flat)))            # union-find over the statements: the latest is the root.

    def root(n):
        while above[n] != n:
            above[n] = above[above[n]]
            n = above[n]
        return n
    last = {}                                 # target: latest statement that drives it.
    for n, targets in enumerate(sets):
        for target in targets:
            if target in last:
                above[root(last[target])] = n
            last[target] = n
    groups = {}
    for n, (statement, targets) in enumerate(zip(flat, sets)):
        group = groups.setdefault(root(n), (set(), []))
        group[0].update(targets)
        group[1].append(statement)
    return [groups[n] for n in sorted(groups)]


def install():
    """Lets LiteX's converter use it."""
    verilog.group_by_targets = group_by_targets
