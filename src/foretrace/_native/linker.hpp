// The linker: rows in file order become spans in order of start, with parents, launches, operators, steps,
// stacks and modules. The rules are those of kineto_link.py, and tests compare the two.
// Columns are released as soon as they have been used: the peak of memory is what this order is made for.
#pragma once

#include <algorithm>
#include <future>
#include <vector>

#include "event.hpp"

namespace foretrace {

// 64-bit key -> 32-bit value.
class FlatMap {
 public:
  explicit FlatMap(size_t expected = 16) {
    size_t size = 32;
    while (size < expected * 2) size *= 2;
    slots_.fill(size, Slot{0, kNullU32});
  }
  // The place of the key's value; kNullU32 where the key is new.
  uint32_t& operator[](uint64_t key) {
    if (2 * (count_ + 1) > slots_.size()) rehash();
    Slot* slot = find(slots_, key);
    if (slot->value == kNullU32) {
      slot->key = key;
      ++count_;  // the caller is about to set it
    }
    return slot->value;
  }
  uint32_t get(uint64_t key) const { return find(slots_, key)->value; }

 private:
  struct Slot {
    uint64_t key;
    uint32_t value;
  };
  template <class Slots>
  static auto find(Slots& slots, uint64_t key) -> decltype(&slots[0]) {
    uint64_t hash = key * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 32;
    size_t at = hash & (slots.size() - 1);
    while (slots[at].value != kNullU32 && slots[at].key != key) at = (at + 1) & (slots.size() - 1);
    return &slots[at];
  }
  void rehash() {
    Column<Slot> larger;
    larger.fill(slots_.size() * 2, Slot{0, kNullU32});
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].value != kNullU32) *find(larger, slots_[i].key) = slots_[i];
    }
    slots_ = std::move(larger);
  }
  Column<Slot> slots_;
  size_t count_ = 0;
};

// Paths of names: each node is a name below a parent node.
class Trie {
 public:
  Column<uint32_t> parent, name;
  uint32_t child(uint32_t above, uint32_t code) {
    uint32_t& node = nodes_[(uint64_t(above) << 32) | code];
    if (node == kNullU32) {
      node = uint32_t(parent.size());
      parent.push(above);
      name.push(code);
    }
    return node;
  }

 private:
  FlatMap nodes_;
};

// Merges neighbouring sorted runs, given by their beginnings, until one is left.
template <class Less>
void merge_runs(Column<uint32_t>& rows, size_t from, size_t to, std::vector<size_t> runs, Column<uint32_t>& spare,
                Less less) {
  runs.push_back(to);
  spare.resize(std::max(spare.size(), rows.size()));
  uint32_t* source = rows.data();
  uint32_t* target = spare.data();
  while (runs.size() > 2) {
    std::vector<size_t> merged;
    size_t i = 0;
    for (; i + 2 < runs.size(); i += 2) {
      std::merge(source + runs[i], source + runs[i + 1], source + runs[i + 1], source + runs[i + 2],
                 target + runs[i], less);
      merged.push_back(runs[i]);
    }
    if (i + 1 < runs.size()) {
      std::copy(source + runs[i], source + runs[i + 1], target + runs[i]);
      merged.push_back(runs[i]);
    }
    merged.push_back(to);
    runs = std::move(merged);
    std::swap(source, target);
  }
  if (source != rows.data()) std::copy(source + from, source + to, rows.data() + from);
}

template <class Less>
void sort_rows(Column<uint32_t>& rows, size_t from, size_t to, Column<uint32_t>& spare, Less less) {
  std::vector<size_t> runs;
  for (size_t i = from; i < to; ++i) {
    if (i == from || less(rows[i], rows[i - 1])) runs.push_back(i);
  }
  if (runs.size() > 1) merge_runs(rows, from, to, std::move(runs), spare, less);
}

struct Output {
  int64_t origin = 0;
  struct {
    Column<uint32_t> track, name, parent, launch, op;
    Column<uint8_t> kind;
    Column<int64_t> start, dur;
    Column<uint16_t> depth;
    Column<int32_t> step;
  } spans;
  struct {
    Column<uint32_t> span;
    Column<int32_t> grid[3], block[3], registers;
    Column<int64_t> shared;
    Column<double> blocks_per_sm, warps_per_sm, occupancy;
    Column<int64_t> graph, graph_node;
  } kernels;
  struct {
    Column<uint32_t> span;
    Column<int64_t> size;
  } copies;
  struct {
    Column<uint32_t> span, shapes, dtypes, strides, inputs, forward, stack, module, call_stack;
    Column<int64_t> sequence, flops;
    Column<int32_t> forward_thread;
  } ops;
  struct {
    Column<uint32_t> span, caller, stack, module;
  } python;
  struct {
    Column<int64_t> at, bytes, device_type, device_id, allocated, reserved;
    Column<uint64_t> address;
    Column<uint32_t> op, stack, module;
  } memory;
  Trie stacks, modules;
  struct {
    Column<uint32_t> span, key;
    Column<uint8_t> type;
    Column<int64_t> value;
  } args;
  struct {
    Column<int32_t> number;
    Column<int64_t> start, end;
  } steps;
};

class Linker {
 public:
  // `dropped` has a byte for each row that is not to be read, or is empty.
  Linker(Raw& raw, Output& out, std::vector<uint8_t> dropped = {})
      : raw_(raw), out_(out), count_(raw.start.size()), dropped_(std::move(dropped)) {}

  void run() {
    sound_starts();
    shift_to_origin();
    sort_lanes();
    place_rows();
    nest();
    order_spans();
    find_steps();
    link_runtime();
    link_device();
    both(
        [this] {
          write_kernels();
          write_copies();
          write_ops();
        },
        [this] {
          write_python();
          write_memory();
          write_args();
        });
    stack_.release();
    module_.release();
    write_causes();
    both([this] { write_order(); }, [this] { write_times(); });
  }

 private:
  // Runs two pieces of work that share nothing they write, side by side if there is enough of it.
  template <class First, class Second>
  void both(First first, Second second) {
    const auto policy = count_ > 100000 ? std::launch::async : std::launch::deferred;
    std::future<void> other = std::async(policy, first);
    second();
    other.get();
  }

  bool kept(size_t row) const { return dropped_.empty() || !dropped_[row]; }
  int64_t dur(uint32_t row) const { return raw_.dur[row] == kNullI64 ? 0 : raw_.dur[row]; }
  bool before(uint32_t a, uint32_t b) const {
    if (raw_.start[a] != raw_.start[b]) return raw_.start[a] < raw_.start[b];
    const int64_t first = dur(a), second = dur(b);
    if (first != second) return first > second;
    return a < b;
  }

  void sound_starts() {
    if (!count_) return;
    const auto range = std::minmax_element(raw_.start.data(), raw_.start.data() + count_);
    if (*range.second - *range.first <= kLongestNs) return;
    std::vector<int64_t> starts(raw_.start.data(), raw_.start.data() + count_);
    std::nth_element(starts.begin(), starts.begin() + ptrdiff_t(count_ / 2), starts.end());
    const int64_t median = starts[count_ / 2];
    dropped_.resize(count_);
    int64_t dropped = 0;
    for (size_t row = 0; row < count_; ++row) {
      if (std::abs(raw_.start[row] - median) <= kLongestNs) continue;
      dropped_[row] = 1;
      ++dropped;
    }
    raw_.repair(kImpossibleStart, -1, dropped);
  }

  void shift_to_origin() {
    int64_t origin = INT64_MAX;
    for (size_t row = 0; row < count_; ++row) {
      if (kept(row)) origin = std::min(origin, raw_.start[row]);
    }
    for (size_t i = 0; i < raw_.counters.at.size(); ++i) origin = std::min(origin, raw_.counters.at[i]);
    if (origin == INT64_MAX) origin = 0;
    out_.origin = origin;
    for (size_t row = 0; row < count_; ++row) raw_.start[row] -= origin;
    for (auto* column : {&raw_.counters.at, &raw_.instants.at, &raw_.windows.start}) {
      for (size_t i = 0; i < column->size(); ++i) (*column)[i] -= origin;
    }
  }

  void sort_lanes() {
    lane_begin_.assign(raw_.lanes.size() + 1, 0);
    for (size_t row = 0; row < count_; ++row) {
      if (kept(row)) ++lane_begin_[raw_.lane[row] + 1];
    }
    for (size_t lane = 0; lane < raw_.lanes.size(); ++lane) lane_begin_[lane + 1] += lane_begin_[lane];
    std::vector<size_t> next(lane_begin_.begin(), lane_begin_.end() - 1);
    rows_.allocate(lane_begin_.back());
    for (size_t row = 0; row < count_; ++row) {
      if (kept(row)) rows_[next[raw_.lane[row]]++] = uint32_t(row);
    }
    const auto less = [this](uint32_t a, uint32_t b) { return before(a, b); };
    for (size_t lane = 0; lane < raw_.lanes.size(); ++lane) {
      sort_rows(rows_, lane_begin_[lane], lane_begin_[lane + 1], spare_, less);
    }
  }

  void nest() {
    parent_.fill(count_, kNullU32);
    op_.fill(count_, kNullU32);
    stack_.fill(count_, kNullU32);
    module_.fill(count_, kNullU32);
    depth_.fill(count_, 0);
    std::vector<uint8_t> is_module(raw_.names.size());
    static const char kPrefix[] = "snn.Module: ";  // with the tag of a string in front
    for (size_t code = 0; code < is_module.size(); ++code) {
      is_module[code] = raw_.names.length(code) >= sizeof kPrefix - 1 &&
                        !std::memcmp(raw_.names.text(code), kPrefix, sizeof kPrefix - 1);
    }
    const FlatMap python_rows = rows_of_python_ids();
    python_end_.allocate(raw_.python.id.size());
    struct Open {
      int64_t end;
      uint32_t row;
    };
    std::vector<Open> open;
    for (size_t lane = 0; lane < raw_.lanes.size(); ++lane) {
      open.clear();
      for (size_t i = lane_begin_[lane]; i < lane_begin_[lane + 1]; ++i) {
        const uint32_t row = rows_[i];
        const int64_t start = raw_.start[row];
        const int64_t end = raw_.kind[row] == kPython ? end_of_call(row, python_rows) : start + dur(row);
        while (!open.empty() && (start >= open.back().end || end > open.back().end)) open.pop_back();
        if (!open.empty()) {
          const uint32_t above = open.back().row;
          parent_[row] = above;
          depth_[row] = uint16_t(std::min(int(depth_[above]) + 1, 65535));
          op_[row] = raw_.kind[above] == kOp ? above : op_[above];
          stack_[row] = stack_[above];
          module_[row] = module_[above];
        }
        const uint8_t kind = raw_.kind[row];
        if (kind == kPython) {
          stack_[row] = out_.stacks.child(stack_[row], raw_.name[row]);
          if (is_module[raw_.name[row]]) module_[row] = out_.modules.child(module_[row], raw_.name[row]);
        }
        if (!on_device(kind) && kind != kMemory) open.push_back(Open{end, row});
      }
    }
  }

  // Rows of Python calls by the profiler's id, where just one call has it.
  FlatMap rows_of_python_ids() const {
    FlatMap rows(raw_.python.id.size());
    for (size_t row = 0; row < count_; ++row) {
      if (raw_.kind[row] != kPython || !kept(row)) continue;
      const int64_t id = raw_.python.id[place_[row]];
      if (id == kNullI64) continue;
      uint32_t& known = rows[uint64_t(id)];
      known = known == kNullU32 ? uint32_t(row) : kSeveral;
    }
    return rows;
  }

  // A call whose return was not recorded seems to last to the end: it ends no later than its caller.
  int64_t end_of_call(uint32_t row, const FlatMap& python_rows) {
    int64_t end = raw_.start[row] + dur(row);
    const int64_t parent = raw_.python.parent[place_[row]];
    const uint32_t caller = parent == kNullI64 ? kNullU32 : python_rows.get(uint64_t(parent));
    if (caller < kSeveral && raw_.lane[caller] == raw_.lane[row] && before(caller, row)) {
      const int64_t limit = python_end_[place_[caller]];
      if (limit > raw_.start[row]) end = std::min(end, limit);
    }
    return python_end_[place_[row]] = end;
  }

  // Memory rows leave; the lanes, each in order, are merged into one.
  void order_spans() {
    std::vector<size_t> runs;
    size_t kept = 0;
    for (size_t lane = 0; lane < raw_.lanes.size(); ++lane) {
      const size_t begin = kept;
      for (size_t i = lane_begin_[lane]; i < lane_begin_[lane + 1]; ++i) {
        if (raw_.kind[rows_[i]] != kMemory) rows_[kept++] = rows_[i];
      }
      if (kept > begin) runs.push_back(begin);
    }
    rows_.resize(kept);
    const auto less = [this](uint32_t a, uint32_t b) { return before(a, b); };
    if (runs.size() > 1) merge_runs(rows_, 0, kept, std::move(runs), spare_, less);
    spare_.release();
    new_id_.fill(count_, kNullU32);
    for (size_t i = 0; i < rows_.size(); ++i) new_id_[rows_[i]] = uint32_t(i);
  }

  void find_steps() {
    std::vector<int64_t> number(raw_.names.size());
    bool any = false;
    for (size_t code = 0; code < number.size(); ++code) {
      number[code] = step_number(raw_.names.text(code) + 1, raw_.names.length(code) - 1);
      any |= number[code] >= 0;
    }
    if (!any) return;
    std::vector<uint32_t> gpu(raw_.gpu_annotations.data(), raw_.gpu_annotations.data() + raw_.gpu_annotations.size());
    std::vector<uint32_t> rows;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const uint32_t row = rows_[i];
      if (raw_.kind[row] == kAnnotation && number[raw_.name[row]] >= 0 && raw_.dur[row] != kNullI64 &&
          !std::binary_search(gpu.begin(), gpu.end(), row)) {
        rows.push_back(row);
      }
    }
    std::sort(rows.begin(), rows.end(), [this](uint32_t a, uint32_t b) {
      return raw_.start[a] != raw_.start[b] ? raw_.start[a] < raw_.start[b] : a < b;
    });
    for (const uint32_t row : rows) {
      out_.steps.number.push(int32_t(number[raw_.name[row]]));
      out_.steps.start.push(raw_.start[row]);
      out_.steps.end.push(raw_.start[row] + raw_.dur[row]);
    }
  }

  // The step that a host event belongs to by its start.
  int32_t step_at(int64_t at) const {
    const int64_t* begin = out_.steps.start.data();
    const size_t count = out_.steps.start.size();
    if (!count) return kNullI32;
    const size_t after = size_t(std::upper_bound(begin, begin + count, at) - begin);
    if (!after || at >= out_.steps.end[after - 1]) return kNullI32;
    return out_.steps.number[after - 1];
  }

  // For each row, its place among the rows of its kind; device kinds share one sequence.
  void place_rows() {
    place_.allocate(count_);
    uint32_t next[kMemory + 1] = {};
    for (size_t row = 0; row < count_; ++row) {
      const uint8_t kind = raw_.kind[row];
      place_[row] = next[on_device(kind) ? uint8_t(kKernel) : kind]++;
    }
  }

  uint32_t by_external(uint64_t external) {
    if (!external || external == kNullU64) return kNullU32;
    if (!externals_ready_) {
      externals_ready_ = true;
      for (size_t i = 0; i < rows_.size(); ++i) {
        const uint32_t row = rows_[i];
        if (raw_.kind[row] != kOp) continue;
        const uint64_t id = raw_.op.external[place_[row]];
        if (!id || id == kNullU64) continue;
        uint32_t& known = externals_[id];
        known = known == kNullU32 ? row : kNullU32 - 1;  // taken twice: no one's
      }
    }
    const uint32_t row = externals_.get(external);
    return row == kNullU32 - 1 ? kNullU32 : row;
  }

  // How many of the numbers that the profiler gave to operators are there, and how far these reach; see
  // operator_numbers.py.
  void count_op_ids() {
    std::vector<uint64_t> ids;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (raw_.kind[rows_[i]] != kOp) continue;
      const uint64_t id = raw_.op.external[place_[rows_[i]]];
      if (id && id != kNullU64) ids.push_back(id);
    }
    if (!std::is_sorted(ids.begin(), ids.end())) std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    for (size_t i = 0; i + 1 < ids.size(); ++i) ids[i] = ids[i + 1] - ids[i];
    if (!ids.empty()) ids.pop_back();
    std::sort(ids.begin(), ids.end());
    ids.resize(ids.size() - ids.size() / kLongJumps);
    uint64_t range = 0;
    for (const uint64_t jump : ids) range += jump;
    raw_.op_ids = int64_t(ids.size());
    raw_.op_id_range = int64_t(std::min(range, uint64_t(INT64_MAX)));
  }

  void link_runtime() {
    for (size_t i = 0; i < rows_.size(); ++i) {
      const uint32_t row = rows_[i];
      if (raw_.kind[row] != kRuntime) continue;
      const uint64_t correlation = raw_.runtime.correlation[place_[row]];
      if (correlation && correlation != kNullU64) calls_.push_back(Call{correlation, row});
      if (op_[row] == kNullU32) op_[row] = by_external(raw_.runtime.external[place_[row]]);
    }
    const auto less = [](const Call& a, const Call& b) { return a.correlation < b.correlation; };
    if (!std::is_sorted(calls_.begin(), calls_.end(), less)) std::stable_sort(calls_.begin(), calls_.end(), less);
  }

  // Of the calls with this id, the last that began before the work did, else the first.
  uint32_t call_of(uint64_t correlation, int64_t at) {
    if (!correlation || correlation == kNullU64) return kNullU32;
    size_t first = hint_;
    for (int tries = 0; first < calls_.size() && calls_[first].correlation < correlation && tries < 8; ++tries) ++first;
    const bool found = first < calls_.size() && calls_[first].correlation == correlation &&
                       (first == 0 || calls_[first - 1].correlation != correlation);
    if (!found) {
      first = size_t(std::lower_bound(calls_.begin(), calls_.end(), correlation,
                                      [](const Call& call, uint64_t id) { return call.correlation < id; }) -
                     calls_.begin());
    }
    hint_ = first < calls_.size() ? first : 0;
    if (first == calls_.size() || calls_[first].correlation != correlation) return kNullU32;
    if (first + 1 == calls_.size() || calls_[first + 1].correlation != correlation) return calls_[first].row;
    // The calls with this id are in order of start.
    const auto after = std::upper_bound(calls_.begin() + ptrdiff_t(first), calls_.end(), at,
                                        [this, correlation](int64_t time, const Call& call) {
                                          return call.correlation != correlation || time < raw_.start[call.row];
                                        });
    const size_t count = size_t(after - calls_.begin());
    return calls_[count > first ? count - 1 : first].row;
  }

  void link_device() {
    launch_.fill(raw_.device.correlation.size(), kNullU32);
    device_step_.fill(raw_.device.correlation.size(), kNullI32);
    for (size_t i = 0; i < rows_.size(); ++i) {
      const uint32_t row = rows_[i];
      if (!on_device(raw_.kind[row])) continue;
      const uint32_t place = place_[row];
      op_[row] = kNullU32;
      const uint32_t launch = call_of(raw_.device.correlation[place], raw_.start[row]);
      if (launch != kNullU32) {
        launch_[place] = launch;
        op_[row] = op_[launch];
        device_step_[place] = step_at(raw_.start[launch]);
      }
      if (op_[row] == kNullU32) {
        op_[row] = by_external(raw_.device.external[place]);
        if (op_[row] != kNullU32 && launch == kNullU32) device_step_[place] = step_at(raw_.start[op_[row]]);
      }
      if (launch == kNullU32) keep_correlation(row, raw_.device.correlation[place]);
    }
    calls_ = {};
    raw_.device.correlation.release();
    raw_.device.external.release();
    raw_.runtime.correlation.release();
    raw_.runtime.external.release();
    count_op_ids();
    raw_.op.external.release();
  }

  // An id that leads nowhere stays an argument: it still tells which work was launched together.
  void keep_correlation(uint32_t row, uint64_t correlation) {
    if (!correlation || correlation >= uint64_t(INT64_MAX)) return;
    raw_.args.row.push(row);
    raw_.args.key.push(raw_.texts.intern('s', "correlation", 11));
    raw_.args.type.push(0);
    raw_.args.value.push(int64_t(correlation));
  }

  uint32_t renamed(uint32_t row) const { return row == kNullU32 ? row : new_id_[row]; }

  template <class T>
  void gather(Column<T>& from, Column<T>& to) {
    to.allocate(rows_.size());
    for (size_t i = 0; i < rows_.size(); ++i) to[i] = from[rows_[i]];
  }

  void write_causes() {
    auto& spans = out_.spans;
    spans.launch.allocate(rows_.size());
    spans.op.allocate(rows_.size());
    spans.step.allocate(rows_.size());
    for (size_t i = 0; i < rows_.size(); ++i) {
      const uint32_t row = rows_[i];
      const uint8_t kind = raw_.kind[row];
      spans.launch[i] = on_device(kind) ? renamed(launch_[place_[row]]) : kNullU32;
      spans.op[i] = on_device(kind) || kind == kRuntime ? renamed(op_[row]) : kNullU32;
      spans.step[i] = on_device(kind) ? device_step_[place_[row]] : step_at(raw_.start[row]);
    }
    for (auto* column : {&launch_, &place_, &op_}) column->release();
    device_step_.release();
  }

  void write_order() {
    auto& spans = out_.spans;
    spans.parent.allocate(rows_.size());
    for (size_t i = 0; i < rows_.size(); ++i) spans.parent[i] = renamed(parent_[rows_[i]]);
    parent_.release();
    new_id_.release();
    gather(depth_, spans.depth);
    depth_.release();
    gather(raw_.name, spans.name);
    raw_.name.release();
    gather(raw_.kind, spans.kind);
    raw_.kind.release();
  }

  void write_times() {
    auto& spans = out_.spans;
    gather(raw_.lane, spans.track);
    raw_.lane.release();
    gather(raw_.dur, spans.dur);
    raw_.dur.release();
    gather(raw_.start, spans.start);
    raw_.start.release();
  }

  // Calls `write(row, place)` for the rows of a kind, in span order.
  template <class Write>
  void each(uint8_t kind, Write write) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (raw_.kind[rows_[i]] == kind) write(rows_[i], place_[rows_[i]]);
    }
  }

  void write_kernels() {
    // Device kinds share `place_`; kernels have columns of their own, in the same order.
    Column<uint32_t> among;
    among.resize(launch_.size());
    uint32_t kernels = 0, copies = 0, device = 0;
    for (size_t row = 0; row < count_; ++row) {
      const uint8_t kind = raw_.kind[row];
      if (!on_device(kind)) continue;
      among[device++] = kind == kKernel ? kernels++ : (kind == kCopy || kind == kSet) ? copies++ : 0;
    }
    auto& to = out_.kernels;
    auto& from = raw_.kernel;
    each(kKernel, [&](uint32_t row, uint32_t place) {
      const uint32_t at = among[place];
      to.span.push(new_id_[row]);
      for (int i = 0; i < 3; ++i) {
        to.grid[i].push(from.grid[i][at]);
        to.block[i].push(from.block[i][at]);
      }
      to.registers.push(from.registers[at]);
      to.shared.push(from.shared[at]);
      to.blocks_per_sm.push(from.blocks_per_sm[at]);
      to.warps_per_sm.push(from.warps_per_sm[at]);
      to.occupancy.push(from.occupancy[at]);
      if (from.graph.recorded()) to.graph.push(from.graph[at]);
      if (from.graph_node.recorded()) to.graph_node.push(from.graph_node[at]);
    });
    among_ = std::move(among);
    for (int i = 0; i < 3; ++i) {
      from.grid[i].release();
      from.block[i].release();
    }
    from.registers.release();
    from.shared.release();
    from.blocks_per_sm.release();
    from.warps_per_sm.release();
    from.occupancy.release();
  }

  void write_copies() {
    for (size_t i = 0; i < rows_.size(); ++i) {
      const uint8_t kind = raw_.kind[rows_[i]];
      if (kind != kCopy && kind != kSet) continue;
      out_.copies.span.push(uint32_t(i));
      out_.copies.size.push(raw_.copy_size[among_[place_[rows_[i]]]]);
    }
    among_.release();
  }

  void write_ops() {
    auto& to = out_.ops;
    auto& from = raw_.op;
    Column<uint32_t> places;
    each(kOp, [&](uint32_t row, uint32_t place) {
      to.span.push(new_id_[row]);
      to.stack.push(stack_[row]);
      to.module.push(module_[row]);
      places.push(place);
    });
    const auto take = [&](auto& source, auto& target) {
      target.allocate(places.size());
      for (size_t i = 0; i < places.size(); ++i) target[i] = source[places[i]];
      source.release();
    };
    take(from.shapes, to.shapes);
    take(from.dtypes, to.dtypes);
    take(from.strides, to.strides);
    take(from.inputs, to.inputs);
    if (from.flops.recorded()) take(from.flops, to.flops);
    if (from.call_stack.recorded()) take(from.call_stack, to.call_stack);
    const bool sequences = from.sequence.recorded();
    if (sequences) take(from.sequence, to.sequence);
    if (from.forward_thread.recorded()) take(from.forward_thread, to.forward_thread);
    if (!sequences) return;
    FlatMap latest(to.span.size() / 4);
    to.forward.fill(to.span.size(), kNullU32);
    for (size_t i = 0; i < to.span.size(); ++i) {
      const int64_t sequence = to.sequence[i];
      if (sequence == kNullI64) continue;
      const int32_t thread = to.forward_thread.empty() ? kNullI32 : to.forward_thread[i];
      if (thread == 0 || thread == kNullI32) {
        latest[uint64_t(sequence)] = to.span[i];
      } else {
        to.forward[i] = latest.get(uint64_t(sequence));
      }
    }
  }

  void write_python() {
    auto& to = out_.python;
    const FlatMap row_of = rows_of_python_ids();
    each(kPython, [&](uint32_t row, uint32_t place) {
      const int64_t parent = raw_.python.parent[place];
      uint32_t caller = parent == kNullI64 ? kNullU32 : row_of.get(uint64_t(parent));
      if (caller == kSeveral) caller = kNullU32;
      to.span.push(new_id_[row]);
      to.caller.push(renamed(caller));
      to.stack.push(stack_[row]);
      to.module.push(module_[row]);
    });
    raw_.python.id.release();
    raw_.python.parent.release();
    python_end_.release();
  }

  void write_memory() {
    Column<uint32_t> rows;
    for (size_t row = 0; row < count_; ++row) {
      if (raw_.kind[row] == kMemory && kept(row)) rows.push(uint32_t(row));
    }
    sort_rows(rows, 0, rows.size(), spare_, [this](uint32_t a, uint32_t b) {
      return raw_.start[a] != raw_.start[b] ? raw_.start[a] < raw_.start[b] : a < b;
    });
    auto& to = out_.memory;
    auto& from = raw_.memory;
    for (size_t i = 0; i < rows.size(); ++i) {
      const uint32_t row = rows[i], place = place_[row];
      to.at.push(raw_.start[row]);
      to.bytes.push(from.bytes[place]);
      to.address.push(from.address[place]);
      to.device_type.push(from.device_type[place]);
      to.device_id.push(from.device_id[place]);
      to.allocated.push(from.allocated[place]);
      to.reserved.push(from.reserved[place]);
      to.op.push(renamed(op_[row]));
      to.stack.push(stack_[row]);
      to.module.push(module_[row]);
    }
    from.bytes.release();
    from.address.release();
    for (auto* column : {&from.device_type, &from.device_id, &from.allocated, &from.reserved}) column->release();
  }

  void write_args() {
    auto& from = raw_.args;
    Column<uint32_t> kept;
    for (size_t i = 0; i < from.row.size(); ++i) {
      from.row[i] = new_id_[from.row[i]];
      if (from.row[i] != kNullU32) kept.push(uint32_t(i));
    }
    sort_rows(kept, 0, kept.size(), spare_, [&from](uint32_t a, uint32_t b) {
      return from.row[a] != from.row[b] ? from.row[a] < from.row[b] : a < b;
    });
    for (size_t i = 0; i < kept.size(); ++i) {
      out_.args.span.push(from.row[kept[i]]);
      out_.args.key.push(from.key[kept[i]]);
      out_.args.type.push(from.type[kept[i]]);
      out_.args.value.push(from.value[kept[i]]);
    }
    from.row.release();
    from.key.release();
    from.type.release();
    from.value.release();
  }

  struct Call {
    uint64_t correlation;
    uint32_t row;
  };
  Raw& raw_;
  Output& out_;
  const size_t count_;
  std::vector<uint8_t> dropped_;
  std::vector<size_t> lane_begin_;
  Column<uint32_t> rows_, spare_, new_id_, place_, parent_, op_, stack_, module_, launch_, among_;
  static constexpr uint32_t kSeveral = kNullU32 - 1;
  Column<int64_t> python_end_;
  Column<uint16_t> depth_;
  Column<int32_t> device_step_;
  std::vector<Call> calls_;
  size_t hint_ = 0;
  static constexpr size_t kLongJumps = 20;  // one in so many
  FlatMap externals_;
  bool externals_ready_ = false;
};

}  // namespace foretrace
