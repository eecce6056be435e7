"""The optimiser of a training run."""

import torch


class Adam(torch.optim.Adam):
    """torch's fused Adam, whose steps do not look for hooks, graphs and missing states."""

    def __init__(self, groups: list[dict], maximize: bool):
        super().__init__(groups, maximize=maximize, fused=True)
        self.alike = all(len({(p.dtype, p.device) for p in group["params"]}) == 1 for group in self.param_groups)

    @torch.no_grad()
    def advance(self) -> None:
        """Change the parameters as `step` does."""
        groups = [(group, [p for p in group["params"] if p.grad is not None]) for group in self.param_groups]
        if not self.alike or not all(p in self.state for _, parameters in groups for p in parameters):
            self.step()  # and make the state
            return
        for group, parameters in groups:
            if not parameters:
                continue
            states = [self.state[p] for p in parameters]
            first, second, steps = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step"))
            torch._foreach_add_(steps, 1)
            torch._fused_adam_(
                parameters,
                [p.grad for p in parameters],
                first,
                second,
                [],
                steps,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=group["maximize"],
            )
