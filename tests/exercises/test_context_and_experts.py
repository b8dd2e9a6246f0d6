"""Context and experts: right answers in other styles, and values that are right and cost too much."""

import torch
import torch.distributed as dist

from lessons.context_and_experts import exercises as ex
from lessons.context_and_experts.cuts import CUTS
from tests.answers import edits, right, wrong


@right(ex.fair_cut)
def test_finer_pieces(tokens, lengths, rank, n):
    """Tokens in groups of 2n, each dealt out there and back: no group lies in two documents."""
    groups = range(0, len(tokens), 2 * n)
    positions = [place for group in groups for place in (group + rank, group + 2 * n - 1 - rank)]
    return tokens[positions], positions


@right(ex.fair_cut)
def test_with_the_lessons_cut(tokens, lengths, rank, n):
    begin, positions = 0, torch.empty(0, dtype=torch.long)
    for length in lengths:
        positions = torch.cat([positions, begin + CUTS["zigzag"](length, n)[rank]])
        begin += length
    return tokens[positions], positions


@wrong(ex.fair_cut, "all ranks have equally many tokens")
def test_whole_documents(tokens, lengths, rank, n):
    mine = torch.cat([document for number, document in enumerate(torch.arange(len(tokens)).split(lengths))
                      if number % n == rank] or [torch.empty(0, dtype=torch.long)])
    return tokens[mine], mine


@right(ex.merge_blocks)
def test_by_the_larger_of_both(out1, logsum1, out2, logsum2):
    top = torch.maximum(logsum1, logsum2)
    sum1, sum2 = (logsum1 - top).exp(), (logsum2 - top).exp()
    out = (sum1[:, None] * out1 + sum2[:, None] * out2) / (sum1 + sum2)[:, None]
    return out, top + (sum1 + sum2).log()


@right(ex.skipping_ring)
def test_asks_the_mask(k, v, where, pass_on, compute):
    rank, n = dist.get_rank(), dist.get_world_size()
    for owner in [(rank - step) % n for step in range(n)]:
        if owner != rank:
            k, v = pass_on(k, v)
        if (where[rank][:, None] >= where[owner]).any():
            compute(k, v, owner)


@right(ex.to_their_experts)
def test_by_boxes_of_tokens(x, expert, weight, net, exchange):
    n = dist.get_world_size()
    places = [torch.where(expert == e) for e in range(n)]
    send = torch.tensor([len(token) for token, _ in places])
    counts = [torch.empty_like(send) for _ in range(n)]
    dist.all_gather(counts, send)
    receive = [int(of_sender[dist.get_rank()]) for of_sender in counts]
    token, slot = (torch.cat(parts) for parts in zip(*places, strict=True))
    back = exchange(net(exchange(x[token], send.tolist(), receive)), receive, send.tolist())
    out = x.new_zeros(x.shape)
    return out.index_put((token,), back * weight[token, slot][:, None], accumulate=True)


@wrong(ex.to_their_experts, "rows of this rank's expert")
def test_every_token_to_every_expert(x, expert, weight, net, exchange):
    n, tokens = dist.get_world_size(), len(x)
    back = exchange(net(exchange(x.repeat(n, 1), [tokens] * n, [tokens] * n)), [tokens] * n, [tokens] * n)
    share = torch.zeros(tokens, n, dtype=x.dtype).scatter(1, expert, weight)
    return (back.view(n, tokens, -1) * share.T[..., None]).sum(0)


@wrong(ex.merge_blocks, "subtract the larger of *each query's* two")
def test_exp_of_what_is_large(out1, logsum1, out2, logsum2):
    total = logsum1.exp() + logsum2.exp()
    return ((logsum1.exp() / total)[:, None] * out1 + (logsum2.exp() / total)[:, None] * out2), total.log()


@wrong(ex.merge_blocks, "`-inf - (-inf)` is nan")
def test_subtracts_the_first_ones(out1, logsum1, out2, logsum2):
    weight = (logsum2 - logsum1).exp()
    return (out1 + weight[:, None] * out2) / (1 + weight)[:, None], logsum1 + weight.log1p()


@wrong(ex.merge_blocks, "0 / 0")
def test_one_maximum_of_all_queries(out1, logsum1, out2, logsum2):
    top = max(logsum1.max(), logsum2.max())
    sum1, sum2 = (logsum1 - top).exp(), (logsum2 - top).exp()
    return (sum1[:, None] * out1 + sum2[:, None] * out2) / (sum1 + sum2)[:, None], top + (sum1 + sum2).log()


@wrong(ex.skipping_ring, "`pass_on` is all that it needs")
def test_gathers_all_blocks(k, v, where, pass_on, compute):
    rank, n = dist.get_rank(), dist.get_world_size()
    blocks = [torch.empty(2) for _ in range(n)]
    dist.all_gather(blocks, torch.stack([k, v]))
    for owner, block in enumerate(blocks):
        if where[rank].max() >= where[owner].min():
            compute(*block, owner)


@right(ex.rows_of_two)
def test_into_the_rows_that_came(rows, receive, nets):
    expert = torch.arange(len(nets)).repeat(len(receive)).repeat_interleave(receive.flatten())
    for e, net in enumerate(nets):
        rows[expert == e] = net(rows[expert == e])
    return rows


@right(ex.rows_of_two)
def test_cut_and_put_together(rows, receive, nets):
    parts = rows.split(receive.flatten().tolist())
    done = [net(torch.cat(parts[e::len(nets)])).split(receive[:, e].tolist()) for e, net in enumerate(nets)]
    return torch.cat([done[e][sender] for sender in range(len(receive)) for e in range(len(nets))])


test_to_their_experts = edits(
    ex.to_their_experts,
    ("exchange(x[order // k]", "exchange(x.detach()[order // k]", "is everything inside the graph?"),
    ("* weight.flatten()", "* weight.detach().flatten()", "the router learns through `weight`"))
test_merges_in_float32 = edits(ex.merge_blocks, (
    "* out2, logsum", "* out2, logsum.float()", "return both in the dtype of the blocks"))
test_experts_compute_foreign_rows = edits(ex.rows_of_two, (
    "done[expert == e] = net(rows[expert == e])", "done[expert == e] = net(rows)[expert == e]",
    "an expert computes its own rows only"))
test_results_outside_the_graph = edits(ex.rows_of_two, ("return done", "return done.detach()", "in the graph of"))
test_a_net_for_each_part = edits(ex.rows_of_two, (
    "for e, net in enumerate(nets):", "for e, net in list(enumerate(nets)) * 2:", "a net was called 2 times"))
