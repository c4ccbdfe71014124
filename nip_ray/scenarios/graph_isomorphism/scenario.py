"""Graph isomorphism as a scenario: a message names a node of one of two graphs; label 1 if they are isomorphic."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nip_ray.networks import native
from nip_ray.play.rollout import Dialogue
from nip_ray.play.scenario import columns
from nip_ray.protocols import Protocol
from nip_ray.scenarios.channelwise import assembled
from nip_ray.scenarios.dialogue_agent import RandomAgent
from nip_ray.scenarios.graph_isomorphism.alone import solo_baseline, wl_bound
from nip_ray.scenarios.graph_isomorphism.dataset import GraphPairs
from nip_ray.scenarios.graph_isomorphism.fixed import ManualAgent, allowed_nodes
from nip_ray.scenarios.graph_isomorphism.network import GraphAgent
from nip_ray.scenarios.graph_isomorphism.overlap import occurring
from nip_ray.scenarios.seat import NamingScenario, Seat
from nip_ray.seeding import seeded
from nip_ray.settings.graph_isomorphism import GraphAgentSettings


class GraphIsomorphism(NamingScenario):
    """Pairs of graphs under `protocol`. Ids number the training pairs first, then the test pairs."""

    name = "graph_isomorphism"
    tables = ("adjacency_IGVV", "node_mask_IGV", "wl_score_I", "label_I", "_one")

    def __init__(
        self,
        protocol: Protocol,
        train: GraphPairs,
        test: GraphPairs,
        agents: Mapping[str, GraphAgentSettings],
        *,
        compiled: bool = False,
        **options: Any,
    ) -> None:
        """options: see `NamingScenario`."""
        super().__init__(protocol, agents, **options)
        self.compiled = compiled
        self.num_nodes = max(train.num_nodes, test.num_nodes)
        self.num_symbols = 2 * self.num_nodes
        self.num_train = len(train)
        self.pairs = {"train": train, "test": test}
        both = [pairs.padded_to(self.num_nodes) for pairs in (train, test)]
        self.adjacency_IGVV = torch.cat([pairs.adjacency_P2nn for pairs in both]).float()
        self.node_mask_IGV = torch.cat([pairs.node_mask_P2n for pairs in both])
        self.wl_score_I = torch.cat([pairs.wl_score_P for pairs in both])
        self.label_I = torch.cat([pairs.y_P for pairs in both])
        self._one = torch.ones(())

    def shown(self, agent: str, id_N: Tensor, said: Dialogue) -> dict[str, Tensor]:
        """Adjacency (N, G, V, V) float, node_mask (N, G, V) bool."""
        return {"adjacency": self.adjacency_IGVV[id_N], "node_mask": self.node_mask_IGV[id_N]}

    def observe(self, agent: str, id_N: Tensor, said: Dialogue, round_N: Tensor, seed_N: Tensor) -> dict[str, Tensor]:
        """Also answer_side (N, writable F): 1 where the latest message of that channel and position names a node of the
        first graph, so that a prover must answer in the second."""
        at, obs = self.seats[agent], super().observe(agent, id_N, said, round_N, seed_N)
        names_first_NL = obs["latest"][:, 0].amax(1) > 0
        writes = [at.reads.index(c) * self.message_size + m for c in at.writes for m in range(self.message_size)]
        obs["answer_side"] = names_first_NL[:, columns(writes)].long()
        return obs

    def build_agent(self, agent: str, seed: int) -> nn.Module:
        """The networks of `agent`, initialised from `seed` without touching the global generator."""
        settings, at = self.agents[agent], self.seats[agent]
        with seeded(seed):
            if settings.kind == "random":
                return RandomAgent(at, self.num_symbols, allowed_nodes)
            if settings.kind == "manual":
                return ManualAgent(settings, at, self.protocol.payment.wants_truth(agent))
            compiled = self.compiled and native.fits(settings)

            def make(seat: Seat, critic_seat: Seat | None) -> GraphAgent:
                return GraphAgent(settings, seat, self.shared_body, critic_seat, compiled)

            return assembled(self, agent, make)

    def legal_symbols(self, agent: str, obs: Mapping[str, Tensor]) -> Tensor:
        """See `allowed_nodes`."""
        return allowed_nodes(obs, self.seats[agent]).flatten(2)

    def group_I(self) -> Mapping[str, Tensor]:
        """The Weisfeiler-Leman score of each pair (-1: isomorphic)."""
        return {"wl_score": self.wl_score_I}

    def symbol_kinds(self, id_N: Tensor, symbol_N: Tensor) -> Tensor:
        """A node's graph and degree: nodes of different pairs share nothing else."""
        degree_NV = self.adjacency_IGVV[id_N].sum(-1).flatten(1).long()
        return degree_NV.gather(1, symbol_N[:, None])[:, 0] + symbol_N // self.num_nodes * self.num_nodes

    def instance_content(self, id_N: Tensor) -> dict[str, Tensor]:
        """The pairs, up to their own largest graph: node_mask (N, 2, n), adjacency (N, 2, n, n), label (N,)."""
        mask_NGV = self.node_mask_IGV[id_N]
        size = int(mask_NGV.sum(-1).max()) if len(id_N) else 0
        return {
            "node_mask": mask_NGV[..., :size],
            "adjacency": self.adjacency_IGVV[id_N][..., :size, :size],
            "label": self.label_I[id_N],
        }

    def instance_picture(self, id: int) -> dict[str, Any]:
        """The pair: "graphs", each with the numbers of its nodes and its edges; symbol s names node s % size of graph s
        // size."""
        graphs = []
        for adjacency_VV, mask_V in zip(self.adjacency_IGVV[id].cpu(), self.node_mask_IGV[id].cpu()):
            graphs.append(
                {"nodes": mask_V.nonzero().flatten().tolist(), "edges": adjacency_VV.triu(1).nonzero().tolist()}
            )
        return {"kind": "graphs", "size": self.num_nodes, "graphs": graphs}

    def occurring(self) -> Tensor:
        """Held-out pairs that occur in training up to isomorphism."""
        return occurring(self.pairs["test"], self.pairs["train"])

    def wl_bound(self, id_N: Tensor) -> float | None:
        """An upper bound for the verifier's message-passing layers alone; see `alone.wl_bound`."""
        layers = self._most_layers()
        return None if layers is None else wl_bound(self._pairs(id_N), layers)

    def solo_baseline(self, id_N: Tensor) -> tuple[int, int] | None:
        """A classifier with the same inputs as the verifier's message-passing layers; see `alone.solo_baseline`."""
        layers = self._most_layers()
        return None if layers is None else solo_baseline(self.pairs["train"], self._pairs(id_N), layers)

    def _most_layers(self) -> int | None:
        """Of deciders: the most layers see everything that others see."""
        return max((self.agents[verifier].num_gnn_layers for verifier in self.protocol.verifiers), default=None)

    def _pairs(self, id_N: Tensor) -> GraphPairs:
        return GraphPairs(
            self.adjacency_IGVV[id_N].to(torch.uint8), self.node_mask_IGV[id_N, 0].sum(1), self.wl_score_I[id_N]
        )

    def named(self, at: Seat, said: Dialogue, round_N: Tensor) -> tuple[Tensor, Tensor]:
        """(N, G, V, F) by round, channel and position, and (N, G, V, L) of the latest ones."""
        count, size = len(round_N), self.num_nodes
        main = said.main[:, :, :, columns(at.reads)]
        said_NXA = main.permute(0, 1, 3, 4, 2).reshape(count, at.history_features, main.shape[2])
        spread_NXS = torch.zeros(count, at.history_features, 2 * size + 1, device=round_N.device)
        # silence, -1, goes to the last place
        spread_NXS.scatter_add_(2, said_NXA % (2 * size + 1), self._one.expand(said_NXA.shape))
        named_NXGV = spread_NXS[..., : 2 * size].view(count, at.history_features, 2, size)
        by_round = named_NXGV.unflatten(1, (at.rounds, at.latest_features))
        latest_NLGV = self.latest(at, by_round, round_N)
        return named_NXGV.permute(0, 2, 3, 1).contiguous(), latest_NLGV.permute(0, 2, 3, 1).contiguous()
