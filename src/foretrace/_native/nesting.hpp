// Nesting of host spans that lie in order of start: the rule of ingest/nesting.py, in one pass over all threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "columns.hpp"

namespace foretrace {

struct Nesting {
  std::vector<uint16_t> depth;
  std::vector<uint32_t> parent, chosen;  // rows, or kNullU32
};

// `role`: 0 for a row that takes no part, 1 for one that does, 2 for one that `chosen` may name.
inline void nest_rows(const uint32_t* track, const int64_t* start, const int64_t* dur, const uint8_t* role, size_t count,
                      Nesting& out) {
  struct Open {
    int64_t end;
    uint32_t row;
  };
  out.depth.assign(count, 0);
  out.parent.assign(count, kNullU32);
  out.chosen.assign(count, kNullU32);
  std::vector<std::vector<Open>> opened;
  for (size_t row = 0; row < count; ++row) {
    if (!role[row]) continue;
    if (track[row] >= opened.size()) opened.resize(size_t(track[row]) + 1);
    std::vector<Open>& stack = opened[track[row]];
    const int64_t begin = start[row];
    const int64_t end = begin + (dur[row] == kNullI64 ? 0 : dur[row]);
    while (!stack.empty() && (begin >= stack.back().end || end > stack.back().end)) stack.pop_back();
    if (!stack.empty()) {
      const uint32_t above = stack.back().row;
      out.parent[row] = above;
      out.depth[row] = out.depth[above] == 65535 ? 65535 : uint16_t(out.depth[above] + 1);
      out.chosen[row] = role[above] == 2 ? above : out.chosen[above];
    }
    if (end > begin) stack.push_back({end, uint32_t(row)});
  }
}

}  // namespace foretrace
