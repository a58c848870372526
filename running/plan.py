"""The plan: the flow's own body, walked without running anything. Imports neither Prefect nor torch."""

from collections.abc import Iterable

from artifacts.stage import Input, Made, Node, Pending
from running.walk import Walk


class PlanExecutor:
    """Returns recorded references, or a placeholder for what is not recorded."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk

    def run(self, node: Node) -> Made:
        """Look one node up."""
        if any(isinstance(source, Pending) for source in node.inputs.values()):
            self.walk.may_run(node)
            return Made(node, None)
        decision = self.walk.decide(node)
        if decision.record:
            return Made(node, decision.record.outputs)
        self.walk.lost_inputs(node.inputs.values())
        return Made(node, None)

    def map(self, nodes: Iterable[Node]) -> list[Made]:
        """Look nodes up; outputs that would not fit the store are refused, by estimate where their size is not known."""
        made = [self.run(node) for node in nodes]
        self.walk.require_room(one.node for one in made if one.outputs is None)
        return made

    def require(self, made: Made) -> None:
        """Mark the producers of final outputs whose blobs are gone."""
        if made.outputs is not None:
            self.walk.lost_inputs([Input.of(ref) for ref in made.outputs.values()])
