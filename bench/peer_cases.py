"""The tensors of bench/peer/sparse_mla.json's cases on the GPU, and the same call of either library on them. The torch
module is a parameter: nothing here imports it."""

from peer_table import VALUES

REQUESTS = 128  # capacity of a pool


class Pools:
    """Packed pages [pages, page, 1, 584|656] on the GPU that decode to ordinary values: codes below 2, scales of 2^-6,
    RoPE values below 1/2. One pool for all cases of a format and page size: each is gigabytes."""

    def __init__(self, torch):
        self.torch, self.made = torch, {}

    def tokens(self, d):
        """Tokens per request."""
        return 32768 if d == 576 else 16384

    def __call__(self, d, page):
        if (d, page) not in self.made:
            self.made[d, page] = (self.v32 if d == 576 else self.v4)(REQUESTS * self.tokens(d) // page, page)
        return self.made[d, page]

    def codes(self, num_pages, stride):
        pages = self.torch.randint(0, 256, (num_pages, stride), dtype=self.torch.uint8, device="cuda")
        return pages.bitwise_and_(0xbf)

    def fill_rope(self, rope):
        rope.view(self.torch.bfloat16).uniform_(-0.5, 0.5)

    def v4(self, num_pages, page):
        pages = self.codes(num_pages, -(-page * 584 // 576) * 576)
        self.fill_rope(pages[:, :page * 576].view(num_pages, page, 576)[..., 448:])
        pages[:, page * 576:page * 584] = 127 - 6
        return pages.as_strided((num_pages, page, 1, 584), (pages.stride(0), 584, 584, 1))

    def v32(self, num_pages, page):
        rows = self.codes(num_pages, page * 656).view(num_pages, page, 656)
        rows[..., 512:528].view(self.torch.float32).fill_(2.0**-6)
        self.fill_rope(rows[..., 528:])
        return rows[:, :, None]


class Case:
    """The tensors of a case, and the call of either library on set `i` of its indices."""

    def __init__(self, torch, pools, case, sets):
        self.torch, self.case, self.scale = torch, case, case["d"]**-0.5
        d, h = case["d"], case["h"]
        self.prefill = "topk" in case
        queries = (case["s_q"],) if self.prefill else (case["b"], case["s_q"])
        self.q = torch.randn(*queries, h, d, dtype=torch.bfloat16, device="cuda")
        self.sink = torch.randn(h, device="cuda")
        if self.prefill:
            self.kv = torch.randn(case["s_kv"], 1, d, dtype=torch.bfloat16, device="cuda") / 10
            self.sets = [[self.random((case["s_q"], 1, case["topk"]), case["s_kv"])] for _ in range(min(sets, 2))]
            return
        self.caches = [pools(d, page) for _, page in case["lists"]]
        self.sets = [self.ids_of_set(i, pools.tokens(d)) for i in range(sets)]

    def random(self, shape, end):
        return self.torch.randint(0, end, shape, dtype=self.torch.int32, device="cuda")

    def ids_of_set(self, i, tokens):
        """Each request of each set reads its own tokens, as long as unused ones remain."""
        b, s_q = self.case["b"], self.case["s_q"]
        request = (i * b + self.torch.arange(b, dtype=self.torch.int32, device="cuda")) % REQUESTS
        return [self.random((b, s_q, topk), tokens) + (request * tokens)[:, None, None]
                for topk, _ in self.case["lists"]]

    def padded(self, heads):
        """q and sink padded to `heads`; the values of the padding do not matter."""
        q = self.q.new_zeros(*self.q.shape[:-2], heads, self.q.shape[-1])
        q[..., :self.q.shape[-2], :] = self.q
        sink = self.sink.new_zeros(heads)
        sink[:self.sink.shape[0]] = self.sink
        return q, sink

    def caller(self, library, heads):
        """call(i) -> out; everything except the indices is prepared here."""
        q, sink = (self.q, self.sink) if heads == self.case["h"] else self.padded(heads)
        if self.prefill:
            return lambda i: library.flash_mla_sparse_fwd(
                q, self.kv, self.sets[i % len(self.sets)][0], self.scale, d_v=VALUES, attn_sink=sink)[0]
        meta, _ = library.get_mla_metadata()

        def call(i):
            ids, more = self.sets[i % len(self.sets)], {}
            if len(ids) > 1:
                more = dict(extra_k_cache=self.caches[1], extra_indices_in_kvcache=ids[1])
            return library.flash_mla_with_kvcache(
                q=q, k_cache=self.caches[0], block_table=None, cache_seqlens=None, head_dim_v=VALUES,
                tile_scheduler_metadata=meta, softmax_scale=self.scale, is_fp8_kvcache=True, indices=ids[0],
                attn_sink=sink, **more)[0]
        return call
