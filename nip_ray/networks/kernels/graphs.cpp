// Graph networks side by side over the same graphs: see `native.gins`.
#include "products.h"

namespace {

struct Graphs {  // real nodes of all graphs, one after the other
  std::vector<int> first, node, edge_first, edge;  // of a graph: its first row; of a row: its place in (graph, V); edges: rows, row by row
  std::vector<Range> blocks;

  Graphs(int streams, int count, int nodes, const float* adjacency, const float* mask) {
    std::vector<int> row(nodes);
    first.push_back(0);
    edge_first.push_back(0);
    for (int s = 0; s < streams; s++)
      for (int g = 0; g < count; g++) {
        const float* real = mask + int64_t(g) * nodes;
        int end = first.back();
        for (int v = 0; v < nodes; v++)
          if (real[v] != 0) { row[v] = end++; node.push_back((s * count + g) * nodes + v); }
        for (int v = 0; v < nodes; v++) {
          if (real[v] == 0) continue;
          const float* line = adjacency + (int64_t(g) * nodes + v) * nodes;
          for (int w = 0; w < nodes; w++)
            if (line[w] != 0 && real[w] != 0) edge.push_back(row[w]);
          edge_first.push_back(int(edge.size()));
        }
        first.push_back(end);
      }
    blocks = blocks_of(first);
  }
};

struct Gin {
  int streams, count, nodes, in, d, mlp, layers, networks, kind, threads;

  int64_t size() const { return int64_t(d) * (in + 1) + layers * (int64_t(2) * d * mlp + mlp + d); }  // of a network's parameters
  int64_t rows() const { return int64_t(streams) * count * nodes; }
  // Where a block that begins at `row` keeps a layer's (rows, d), then its (rows, mlp).
  int64_t kept(int network, int layer, int row) const { return ((int64_t(network) * layers + layer) * rows() + row) * (d + mlp); }
};

// Sum over a row's neighbours and itself: s = (A + I) a, for the rows of a block that begins at row `base`.
void gather(const Graphs& graphs, Range rows, int base, int d, const float* a, float* s) {
  for (int r = rows.begin; r < rows.end; r++)
    for (int c = 0; c < d; c += LANES) {
      Vec total = load(a + int64_t(r - base) * d + c);
      for (int e = graphs.edge_first[r]; e < graphs.edge_first[r + 1]; e++) total += load(a + int64_t(graphs.edge[e] - base) * d + c);
      store(s + int64_t(r - base) * d + c, total);
    }
}

void scatter(const Graphs& graphs, Range rows, int base, int d, const float* ds, float* da) {  // da = (A + I)' ds
  std::memcpy(da, ds, sizeof(float) * d * (rows.end - rows.begin));
  for (int r = rows.begin; r < rows.end; r++)
    for (int e = graphs.edge_first[r]; e < graphs.edge_first[r + 1]; e++)
      for (int c = 0; c < d; c += LANES) {
        float* place = da + int64_t(graphs.edge[e] - base) * d + c;
        store(place, load(place) + load(ds + int64_t(r - base) * d + c));
      }
}

void copy_rows(const Graphs& graphs, Range rows, int width, const float* from, float* to) {
  for (int r = rows.begin; r < rows.end; r++)
    std::memcpy(to + int64_t(r - rows.begin) * width, from + int64_t(graphs.node[r]) * width, sizeof(float) * width);
}

}  // namespace

extern "C" {

// outputs: K of (S, M, V, d), zeroed. kept: K of (layers, rows, d + mlp), or none where no gradient will be asked for. parameters: of each network W0 b0, then W1 b1 W2 b2 a layer.
void nip_gin(const Gin* g, const float* x, const float* adjacency, const float* mask, const float* const* parameters, float* const* outputs,
             float* kept) {
  const Graphs graphs(g->streams, g->count, g->nodes, adjacency, mask);
  const int d = g->d, m = g->mlp, per_network = 2 + 4 * g->layers;
  std::vector<std::vector<float>> turned(g->networks * (1 + 2 * g->layers));
  for (int n = 0; n < g->networks; n++)
    for (int i = 0; i < 1 + 2 * g->layers; i++) {
      const int in = i == 0 ? g->in : i % 2 ? d : m, out = i % 2 ? m : d;
      auto& to = turned[n * (1 + 2 * g->layers) + i];
      to.resize(int64_t(in) * out);
      transpose(parameters[n * per_network + 2 * i], out, in, to.data(), out);
    }
  const int blocks = int(graphs.blocks.size());
  shared_out(blocks * g->networks, g->threads, [&](int job) {
    const int n = job % g->networks;
    const Range block = graphs.blocks[job / g->networks], rows{graphs.first[block.begin], graphs.first[block.end]};
    const int count = rows.end - rows.begin;
    const float* const* at = parameters + n * per_network;
    thread_local std::vector<float> features, h, s, passing;
    copy_rows(graphs, rows, g->in, x, grown(features, int64_t(count) * g->in));
    linear(count, g->in, d, features.data(), turned[n * (1 + 2 * g->layers)].data(), at[1], grown(h, int64_t(count) * d));
    grown(s, int64_t(count) * d);
    for (int l = 0; l < g->layers; l++) {
      float* a = kept ? kept + g->kept(n, l, rows.begin) : grown(passing, int64_t(count) * (d + m));
      float* t = a + int64_t(count) * d;
      std::memcpy(a, h.data(), sizeof(float) * count * d);
      activate(a, int64_t(count) * d, g->kind);
      gather(graphs, rows, rows.begin, d, a, s.data());
      linear(count, d, m, s.data(), turned[n * (1 + 2 * g->layers) + 1 + 2 * l].data(), at[3 + 4 * l], t);
      activate(t, int64_t(count) * m, g->kind);
      linear(count, m, d, t, turned[n * (1 + 2 * g->layers) + 2 + 2 * l].data(), at[5 + 4 * l], h.data());
    }
    for (int r = rows.begin; r < rows.end; r++)
      std::memcpy(outputs[n] + int64_t(graphs.node[r]) * d, h.data() + int64_t(r - rows.begin) * d, sizeof(float) * d);
  });
}

// gradients: K of (S, M, V, d). result: K of Gin::size(), in the order of the parameters.
void nip_gin_back(const Gin* g, const float* x, const float* adjacency, const float* mask, const float* const* parameters,
                  const float* const* gradients, const float* kept, float* result) {
  const Graphs graphs(g->streams, g->count, g->nodes, adjacency, mask);
  const int d = g->d, m = g->mlp, per_network = 2 + 4 * g->layers, blocks = int(graphs.blocks.size());
  std::vector<std::vector<std::vector<float>>> parts(g->networks, std::vector<std::vector<float>>(PARTS));
  shared_out(PARTS * g->networks, g->threads, [&](int job) {
    const int n = job % g->networks;
    const Range mine = part_of(blocks, job / g->networks);
    auto& total = parts[n][job / g->networks];
    total.assign(g->size(), 0.0f);
    const float* const* at = parameters + n * per_network;
    thread_local std::vector<float> features, s, dh, dt, ds;
    for (int i = mine.begin; i < mine.end; i++) {
      const Range block = graphs.blocks[i], rows{graphs.first[block.begin], graphs.first[block.end]};
      const int count = rows.end - rows.begin;
      copy_rows(graphs, rows, d, gradients[n], grown(dh, int64_t(count) * d));
      grown(s, int64_t(count) * d), grown(ds, int64_t(count) * d), grown(dt, int64_t(count) * m);
      float* to = total.data() + g->size();
      for (int l = g->layers - 1; l >= 0; l--) {
        const float* a = kept + g->kept(n, l, rows.begin);
        const float* t = a + int64_t(count) * d;
        gather(graphs, rows, rows.begin, d, a, s.data());
        to -= d; float* db2 = to; to -= d * m; float* dw2 = to; to -= m; float* db1 = to; to -= m * d; float* dw1 = to;
        linear_back(count, m, d, t, at[4 + 4 * l], dh.data(), dw2, db2, dt.data());
        through(dt.data(), t, int64_t(count) * m, g->kind);
        linear_back(count, d, m, s.data(), at[2 + 4 * l], dt.data(), dw1, db1, ds.data());
        scatter(graphs, rows, rows.begin, d, ds.data(), dh.data());
        through(dh.data(), a, int64_t(count) * d, g->kind);
      }
      copy_rows(graphs, rows, g->in, x, grown(features, int64_t(count) * g->in));
      linear_back(count, g->in, d, features.data(), nullptr, dh.data(), total.data(), total.data() + int64_t(d) * g->in, nullptr);
    }
  });
  shared_out(g->networks, g->threads, [&](int n) { add_up(parts[n], result + n * g->size(), g->size()); });
}

}  // extern "C"
