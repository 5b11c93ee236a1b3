// Nesting of host spans that come in order of start: the rule of ingest/nesting.py, in one pass over all threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "columns.hpp"

namespace foretrace {

// Where the rows of one block lie; rows are counted from the first block on.
struct Nesting {
  Column<uint16_t> depth;
  Column<uint32_t> parent, chosen;  // rows, or kNullU32
};

// Takes block after block of rows, and keeps of them what is still open.
class Nester {
 public:
  // `role`: 0 for a row that takes no part, 1 for one that does, 2 for one that `chosen` may name.
  void add(const uint32_t* track, const int64_t* start, const int64_t* dur, const uint8_t* role, size_t count,
           Nesting& out) {
    out.depth.resize(count);
    out.parent.resize(count);
    out.chosen.resize(count);
    for (size_t i = 0; i < count; ++i) {
      out.depth[i] = 0;
      out.parent[i] = out.chosen[i] = kNullU32;
      if (!role[i]) continue;
      if (track[i] >= opened_.size()) opened_.resize(size_t(track[i]) + 1);
      std::vector<Open>& stack = opened_[track[i]];
      const int64_t begin = start[i];
      const int64_t end = begin + (dur[i] == kNullI64 ? 0 : dur[i]);
      while (!stack.empty() && (begin >= stack.back().end || end > stack.back().end)) stack.pop_back();
      const uint32_t row = uint32_t(rows_ + i);
      if (!stack.empty()) {
        const Open& above = stack.back();
        out.parent[i] = above.row;
        out.depth[i] = above.depth == 65535 ? 65535 : uint16_t(above.depth + 1);
        out.chosen[i] = above.chosen;
      }
      if (end > begin) stack.push_back({end, row, role[i] == 2 ? row : out.chosen[i], out.depth[i]});
    }
    rows_ += count;
  }

  size_t rows() const { return rows_; }

 private:
  struct Open {
    int64_t end;
    uint32_t row;
    uint32_t chosen;  // what a row inside gets
    uint16_t depth;
  };
  std::vector<std::vector<Open>> opened_;
  size_t rows_ = 0;
};

}  // namespace foretrace
