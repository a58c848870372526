"""The plan: the flow's own body, walked without running anything. Imports neither Prefect nor torch."""

from collections.abc import Iterable

from artifacts.stage import Input, Made, Node, Pending
from running.walk import Decision, Walk


class PlanExecutor:
    """Returns recorded references, or a placeholder for what is not recorded."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.decisions: list[Decision] = []

    def run(self, node: Node) -> Made:
        """Look one node up."""
        return self.map([node])[0]

    def map(self, nodes: Iterable[Node]) -> list[Made]:
        """Look nodes up; outputs that would not fit the store are refused, by estimate where their size is not known."""
        asked = list(nodes)
        known = [node for node in asked if not any(isinstance(source, Pending) for source in node.inputs.values())]
        decided = {id(decision.node): decision for decision in self.walk.decide(known)}
        self.decisions += decided.values()
        made = []
        for node in asked:
            decision = decided.get(id(node))
            self.walk.steps.append(decision.step if decision else self.walk.may_run(node))
            made.append(Made(node, decision.record.outputs if decision and decision.record else None))
        self.walk.lost_inputs(
            source for decision in decided.values() if not decision.record for source in decision.node.inputs.values()
        )
        self.walk.require_room(one.node for one in made if one.outputs is None)
        return made

    def require(self, made: Made) -> None:
        """Mark the producers of final outputs whose blobs are gone."""
        if made.outputs is not None:
            self.walk.lost_inputs([Input.of(ref) for ref in made.outputs.values()])
