"""A prediction: the bytes of a model's states in one rank, under DDP and ZeRO's three stages."""

from helpers.exercises.alone import Alone
from helpers.exercises.mistakes import mistake
from helpers.exercises.rules import same


class MemoryPerRank(Alone):
    title = "Predict: the states of one rank"
    task = ("A large model in bf16 is fine-tuned by small layers that were added to it. Its `frozen` parameters, in "
            "bf16, have `requires_grad=False`. The `added` ones, in float32, are trained with AdamW by `ranks` ranks. "
            "`stage` is ZeRO's 1, 2 or 3, or 0 for DDP with `gradient_as_bucket_view=True`. Return the bytes that one "
            "rank holds right after backward for parameters, gradients and the optimizer's state, in a dict with the "
            "keys `\"parameters\"`, `\"gradients\"` and `\"optimizer\"`. What is shared out is cut into equal pieces "
            "of whole numbers, padded if necessary: the frozen ones and the added ones apart.")
    hints = (
        "Stage 1 shares out the optimizer's state, stage 2 the gradients as well, stage 3 all parameters, too.",
        "A piece has `ceil(parameters / ranks)` parameters: `-(-parameters // ranks)` in whole numbers.",
        "A frozen parameter has no gradient, so the optimizer keeps nothing for it.",
    )
    explanation = ("The later the stage, the more kinds are cut. Frozen parameters need 2 bytes each, and nothing "
                   "else; the added ones need 4, 4 and 8.")
    why = ("this is the first thing to compute before you rent GPUs. To train all of 70 billion parameters in float32 "
           "takes 1,120 GB of states. With 1 % added and the others frozen in bf16 it is 151 GB, of which 140 are the "
           "frozen ones: only stage 3 cuts those.")

    cases = {f"{frozen:,} frozen, {added:,} added, {ranks} ranks, stage {stage}": (frozen, added, ranks, stage)
             for frozen, added, ranks in ((1000, 100, 4), (1001, 43, 4), (9, 3, 8)) for stage in range(4)}

    def answer(frozen, added, ranks, stage):
        def held(numbers, since):  # by one rank, of numbers that are shared out since that stage
            if stage < since:
                return numbers
            return -(-numbers // ranks)                                     #: piece

        parameters = 2 * held(frozen, 3) + 4 * held(added, 3)               #: parameters
        gradients = 4 * held(added, 2)                                      #: gradients
        optimizer = 8 * held(added, 1)                                      #: optimizer
        return {"parameters": parameters, "gradients": gradients, "optimizer": optimizer}

    def observe(memory_per_rank, case):
        states = memory_per_rank(*case)
        try:
            return {"bytes": {kind: float(size) for kind, size in states.items()}}
        except (AttributeError, TypeError, ValueError):  # no dict, or no numbers
            return {"bytes": repr(states)}

    # ---------------------------------------------------------------------------------------- what must hold

    def cut_at(case):
        frozen, added, ranks, stage = case
        if stage == 0:
            return ("stage 0 cuts nothing. What has 2 bytes a number, what has 4, and for which parameters are there "
                    "gradients and AdamW's two means?")
        return (f"which kinds does stage {stage} cut? A piece of the frozen parameters has {-(-frozen // ranks):,}, "
                f"one of the added {-(-added // ranks):,}. For which of them are there gradients?")

    rules = (same("bytes", cut_at),)

    # ------------------------------------------------------------------------------------ what people write

    mistakes = (
        mistake("A piece of the frozen parameters has", piece="return numbers // ranks"),
        mistake("A piece of the frozen parameters has", piece="return numbers / ranks"),
        mistake("What has 2 bytes a number", gradients="gradients = None"),
        mistake("for which parameters are there gradients", optimizer="optimizer = 4 * held(added, 1)"),
        mistake("for which parameters are there gradients", optimizer="optimizer = 8 * held(frozen + added, 1)"),
        mistake("for which parameters are there gradients", gradients="gradients = 4 * held(frozen + added, 2)"),
        mistake("What has 2 bytes a number", parameters="parameters = 4 * held(frozen + added, 3)"),
        mistake("which kinds does stage 1 cut?", gradients="gradients = 4 * held(added, 1)"),
        mistake("which kinds does stage 2 cut?", parameters="parameters = 2 * held(frozen, 2) + 4 * held(added, 2)"),
        mistake("which kinds does stage 3 cut?", parameters="parameters = 2 * frozen + 4 * held(added, 3)"),
        mistake("which kinds does stage 3 cut?", parameters="parameters = 2 * held(frozen + 2 * added, 3)"),
    )


memory_per_rank = MemoryPerRank()
