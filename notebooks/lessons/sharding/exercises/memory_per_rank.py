"""A prediction: the bytes of a model's states in one rank, under DDP and ZeRO's three stages."""

from helpers.exercises.alone import Alone
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import same


class MemoryPerRank(Alone):
    title = "Predict: the states of one rank"
    task = ("A model with `parameters` parameters, in float32, is trained with AdamW by `ranks` ranks. "
            "`stage` is 0 for DDP, or ZeRO's 1, 2 or 3. Return the bytes that one rank holds for parameters, "
            "gradients and the optimizer's state, in a dict with the keys `\"parameters\"`, `\"gradients\"` "
            "and `\"optimizer\"`. What is shared out is cut into equal pieces of whole parameters, padded if "
            "necessary.")
    hints = (
        "Stage 1 shares out the optimizer's state, stage 2 the gradients as well, stage 3 all three.",
        "A piece has `ceil(parameters / ranks)` parameters: `-(-parameters // ranks)` in whole numbers.",
    )
    explanation = ("The later the stage, the more kinds are cut. Each number has 4 bytes, and AdamW keeps "
                   "two numbers for each parameter.")
    why = ("this is the first thing to compute before you rent GPUs. In float32 the states of 175 billion "
           "parameters are 2,800 GB, which no GPU has; each of 64 GPUs holds 44 GB. Activations come on "
           "top, and are not shared out.")

    cases = {f"{parameters:,} parameters, {ranks} ranks, stage {stage}": (parameters, ranks, stage)
             for parameters, ranks in ((1000, 4), (1001, 4), (7, 8)) for stage in range(4)}

    def answer(parameters, ranks, stage):
        piece = -(-parameters // ranks)                                     #: piece
        weights = 4 * (piece if stage >= 3 else parameters)                 #: weights
        gradients = 4 * (piece if stage >= 2 else parameters)               #: gradients
        optimizer = 8 * (piece if stage >= 1 else parameters)               #: optimizer
        return {"parameters": weights, "gradients": gradients, "optimizer": optimizer}

    def observe(memory_per_rank, case):
        states = memory_per_rank(*case)
        if not isinstance(states, dict):
            return {"bytes": repr(states)}
        return {"bytes": {kind: float(size) for kind, size in states.items()}}

    # ---------------------------------------------------------------------------------------- what must hold

    def cut_at(case):
        parameters, ranks, stage = case
        if stage == 0:
            return "stage 0 cuts nothing. Each number has 4 bytes, and AdamW keeps two for each parameter"
        return f"which kinds does stage {stage} cut? A piece has {-(-parameters // ranks):,} parameters"

    rules = (same("bytes", cut_at),)

    # ------------------------------------------------------------------------------------ what people write

    round_up = "as many equally long pieces of whole parameters as ranks: round up"
    two_numbers = "AdamW keeps two numbers for each parameter, of 4 bytes each"

    mistakes = (
        mistake(round_up, piece="piece = parameters // ranks"),
        mistake(round_up, piece="piece = parameters / ranks"),
        mistake(two_numbers, optimizer="optimizer = 4 * (piece if stage >= 1 else parameters)"),
        mistake(two_numbers, optimizer="optimizer = 12 * (piece if stage >= 1 else parameters)"),
        mistake("the gradients are shared out at stage 2, and not before",
                gradients="gradients = 4 * (piece if stage >= 1 else parameters)"),
        mistake("the parameters are shared out at stage 3, and not before",
                weights="weights = 4 * (piece if stage >= 2 else parameters)"),
    )


memory_per_rank = MemoryPerRank()
