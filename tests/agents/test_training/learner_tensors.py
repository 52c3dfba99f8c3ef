"""What a learner of a run trains, by name."""


def tensors(learner):
    modules = {"policy": learner.policy_network, "value": learner.value_network}
    if learner.planner is not None:
        modules |= {"encoder": learner.planner.encoder, "divergence": learner.planner.divergence}
    return {
        f"{part}/{name}": tensor
        for part, module in modules.items()
        for name, tensor in module.state_dict().items()
    }
