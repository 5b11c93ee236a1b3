// The linker: rows in file order become spans in order of start, with parents, launches, operators, steps,
// stacks and modules. The rules are those of kineto_link.py, and tests compare the two.
// Columns are released as soon as they have been used: the peak of memory is what this order is made for.
#pragma once

#include <algorithm>
#include <future>
#include <vector>

#include "templates.hpp"

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

// Rows by id, where just one row has it. Ids that lie close together, as a profiler counts them, are the places in a list.
class IdMap {
 public:
  static constexpr uint32_t kSeveral = kNullU32 - 1;

  // `each(add)` calls add(id, row) for every row that has an id, and does so twice.
  template <class Each>
  void build(Each each) {
    uint64_t least = kNullU64, greatest = 0;
    size_t count = 0;
    each([&](uint64_t id, uint32_t) {
      least = std::min(least, id);
      greatest = std::max(greatest, id);
      ++count;
    });
    if (!count) return;
    const auto set = [](uint32_t& known, uint32_t row) { known = known == kNullU32 ? row : kSeveral; };
    if (greatest - least < 4 * uint64_t(count) + 1024) {
      least_ = least;
      rows_.fill(size_t(greatest - least) + 1, kNullU32);
      each([&](uint64_t id, uint32_t row) { set(rows_[size_t(id - least_)], row); });
    } else {
      scattered_ = FlatMap(count);
      each([&](uint64_t id, uint32_t row) { set(scattered_[id], row); });
    }
  }
  // kNullU32 where no row has the id, or several have.
  uint32_t get(uint64_t id) const {
    uint32_t row;
    if (!rows_.empty()) {
      row = id >= least_ && id - least_ < rows_.size() ? rows_[size_t(id - least_)] : kNullU32;
    } else {
      row = scattered_.get(id);
    }
    return row == kSeveral ? kNullU32 : row;
  }

 private:
  uint64_t least_ = 0;
  Column<uint32_t> rows_;
  FlatMap scattered_;
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
    both([this] { place_rows(); empty_links(); }, [this] { sort_lanes(); });
    both([this] { order_spans(); find_steps(); }, [this] { nest(); });
    lane_rows_.release();
    both([this] { gather(raw_.kind, out_.spans.kind); write_order(); write_memory(); },
         [this] { link_runtime(); link_device(); });
    both([this] { write_kernels(); write_args(); }, [this] { write_ops(); });
    write_causes();
    write_times();
  }

 private:
  // Runs two pieces of work that share nothing they write, side by side if there is enough of it.
  template <class First, class Second>
  void both(First first, Second second) {
    in_both(count_ > 100000, first, second);
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
    lane_rows_.allocate(lane_begin_.back());
    for (size_t row = 0; row < count_; ++row) {
      if (kept(row)) lane_rows_[next[raw_.lane[row]]++] = uint32_t(row);
    }
    const auto less = [this](uint32_t a, uint32_t b) { return before(a, b); };
    for (size_t lane = 0; lane < raw_.lanes.size(); ++lane) {
      sort_rows(lane_rows_, lane_begin_[lane], lane_begin_[lane + 1], new_id_, less);  // which is not needed yet
    }
  }

  void empty_links() {
    parent_.fill(count_, kNullU32);
    op_.fill(count_, kNullU32);
    stack_.fill(count_, kNullU32);
    depth_.fill(count_, 0);
  }

  void nest() {
    std::vector<uint8_t> is_module(raw_.names.size());
    static const char kPrefix[] = "snn.Module: ";  // with the tag of a string in front
    for (size_t code = 0; code < is_module.size(); ++code) {
      is_module[code] = raw_.names.length(code) >= sizeof kPrefix - 1 &&
                        !std::memcmp(raw_.names.text(code), kPrefix, sizeof kPrefix - 1);
    }
    IdMap python_rows;
    python_rows.build([this](auto add) {
      for (size_t row = 0; row < count_; ++row) {
        if (raw_.kind[row] != kPython || !kept(row)) continue;
        const int64_t id = raw_.python.id[place_[row]];
        if (id != kNullI64) add(uint64_t(id), uint32_t(row));
      }
    });
    raw_.python.id.release();
    caller_.fill(raw_.python.parent.size(), kNullU32);
    struct Open {
      int64_t end;
      uint32_t row;
    };
    std::vector<Open> open;
    for (size_t lane = 0; lane < raw_.lanes.size(); ++lane) {
      open.clear();
      for (size_t i = lane_begin_[lane]; i < lane_begin_[lane + 1]; ++i) {
        const uint32_t row = lane_rows_[i];
        const int64_t start = raw_.start[row];
        const int64_t end = raw_.kind[row] == kPython ? end_of_call(row, python_rows) : start + dur(row);
        while (!open.empty() && (start >= open.back().end || end > open.back().end)) open.pop_back();
        if (!open.empty()) {
          const uint32_t above = open.back().row;
          parent_[row] = above;
          depth_[row] = uint16_t(std::min(int(depth_[above]) + 1, 65535));
          op_[row] = raw_.kind[above] == kOp ? above : op_[above];
          stack_[row] = stack_[above];
        }
        const uint8_t kind = raw_.kind[row];
        if (kind == kPython) {
          const uint32_t around = stack_[row], name = raw_.name[row];
          stack_[row] = out_.stacks.child(around, name);
          if (stack_[row] == stack_modules_.size()) {  // a new one
            const uint32_t outer = module_of(around);
            stack_modules_.push(is_module[name] ? out_.modules.child(outer, name) : outer);
          }
        }
        if (!on_device(kind) && kind != kMemory) open.push_back(Open{end, row});
      }
    }
    raw_.python.parent.release();
  }

  // The calls around a row, which its stack lists, tell the modules around it.
  uint32_t module_of(uint32_t stack) const { return stack == kNullU32 ? stack : stack_modules_[stack]; }

  // A call whose return was not recorded seems to last to the end: it ends no later than its caller.
  int64_t end_of_call(uint32_t row, const IdMap& python_rows) {
    int64_t end = raw_.start[row] + dur(row);
    const int64_t parent = raw_.python.parent[place_[row]];
    const uint32_t caller = parent == kNullI64 ? kNullU32 : python_rows.get(uint64_t(parent));
    caller_[place_[row]] = caller;
    if (caller != kNullU32 && raw_.lane[caller] == raw_.lane[row] && before(caller, row)) {
      const int64_t limit = raw_.python.parent[place_[caller]];
      if (limit > raw_.start[row]) end = std::min(end, limit);
    }
    return raw_.python.parent[place_[row]] = end;  // which was the last to be read of it
  }

  // Memory rows leave; the lanes, each in order, are merged into one.
  void order_spans() {
    std::vector<size_t> runs;
    size_t kept = 0;
    for (size_t i = 0; i < lane_rows_.size(); ++i) kept += raw_.kind[lane_rows_[i]] != kMemory;
    rows_.allocate(kept);
    kept = 0;
    for (size_t lane = 0; lane < raw_.lanes.size(); ++lane) {
      const size_t begin = kept;
      for (size_t i = lane_begin_[lane]; i < lane_begin_[lane + 1]; ++i) {
        if (raw_.kind[lane_rows_[i]] != kMemory) rows_[kept++] = lane_rows_[i];
      }
      if (kept > begin) runs.push_back(begin);
    }
    const auto less = [this](uint32_t a, uint32_t b) { return before(a, b); };
    if (runs.size() > 1) merge_runs(rows_, 0, kept, std::move(runs), new_id_, less);
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
      externals_.build([this](auto add) {
        for (size_t row = 0; row < count_; ++row) {
          if (raw_.kind[row] != kOp || !kept(row)) continue;
          const uint64_t id = raw_.op.external[place_[row]];
          if (id && id != kNullU64) add(id, uint32_t(row));
        }
      });
    }
    return externals_.get(external);
  }

  // How many of the numbers that the profiler gave to operators are there, and how far these reach; see
  // operator_numbers.py.
  void count_op_ids() {
    Column<uint64_t>& ids = raw_.op.external;  // which are not needed any more
    size_t count = 0;
    for (size_t row = 0; row < count_; ++row) {
      if (raw_.kind[row] != kOp || new_id_[row] == kNullU32) continue;
      const uint64_t id = ids[place_[row]];
      if (id && id != kNullU64) ids[count++] = id;
    }
    uint64_t* const begin = ids.data();
    if (!std::is_sorted(begin, begin + count)) count = sort_ids(begin, count);
    count = size_t(std::unique(begin, begin + count) - begin);
    for (size_t i = 0; i + 1 < count; ++i) begin[i] = begin[i + 1] - begin[i];
    if (count) --count;
    const size_t counted = count - count / kLongJumps;  // the shortest
    if (counted < count) std::nth_element(begin, begin + counted, begin + count);
    uint64_t range = 0;
    for (size_t i = 0; i < counted; ++i) range += begin[i];
    raw_.op_ids = int64_t(counted);
    raw_.op_id_range = int64_t(std::min(range, uint64_t(INT64_MAX)));
    ids.release();
  }

  // Sorts; ids that lie close together are marks in a list of bits, which leaves out what is there twice. How many are left.
  static size_t sort_ids(uint64_t* ids, size_t count) {
    const auto range = std::minmax_element(ids, ids + count);
    const uint64_t least = *range.first, words = (*range.second - least) / 64 + 1;
    if (words > count) {
      std::sort(ids, ids + count);
      return count;
    }
    std::vector<uint64_t> marks(static_cast<size_t>(words));
    for (size_t i = 0; i < count; ++i) marks[size_t((ids[i] - least) / 64)] |= uint64_t(1) << ((ids[i] - least) % 64);
    size_t left = 0;
    for (size_t word = 0; word < marks.size(); ++word) {
      for (unsigned place = 0; place < 64; ++place) {
        if (marks[word] >> place & 1) ids[left++] = least + 64 * uint64_t(word) + place;
      }
    }
    return left;
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
    externals_ = IdMap();
    raw_.device.correlation.release();
    raw_.device.external.release();
    raw_.runtime.correlation.release();
    raw_.runtime.external.release();
    count_op_ids();
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

  // A column of the spans, the halves side by side: one column after the other, since all of them together would not
  // fit into the memory that was needed before.
  template <class T, class Value>
  void write_halves(Column<T>& to, Value value) {
    to.allocate(rows_.size());
    const size_t middle = rows_.size() / 2;
    const auto part = [&](size_t from, size_t end) {
      for (size_t i = from; i < end; ++i) to[i] = value(i);
    };
    both([&] { part(0, middle); }, [&] { part(middle, rows_.size()); });
  }

  void write_causes() {
    auto& spans = out_.spans;
    write_halves(spans.launch, [&](size_t i) {
      return on_device(spans.kind[i]) ? renamed(launch_[place_[rows_[i]]]) : kNullU32;
    });
    write_halves(spans.op, [&](size_t i) {
      return on_device(spans.kind[i]) || spans.kind[i] == kRuntime ? renamed(op_[rows_[i]]) : kNullU32;
    });
    for (auto* column : {&launch_, &op_, &new_id_}) column->release();
    write_halves(spans.step, [&](size_t i) {
      return on_device(spans.kind[i]) ? device_step_[place_[rows_[i]]] : step_at(raw_.start[rows_[i]]);
    });
    device_step_.release();
    place_.release();
  }

  void write_order() {
    auto& spans = out_.spans;
    spans.parent.allocate(rows_.size());
    for (size_t i = 0; i < rows_.size(); ++i) spans.parent[i] = renamed(parent_[rows_[i]]);
    parent_.release();
    gather(depth_, spans.depth);
    depth_.release();
    gather(raw_.name, spans.name);
    raw_.name.release();
    gather(raw_.lane, spans.track);
    raw_.lane.release();
  }

  void write_times() {
    auto& spans = out_.spans;
    write_halves(spans.dur, [&](size_t i) { return raw_.dur[rows_[i]]; });
    raw_.dur.release();
    write_halves(spans.start, [&](size_t i) { return raw_.start[rows_[i]]; });
    raw_.start.release();
  }

  // The places, among the rows of a kind, of those that are spans, in span order; `ids` are the spans.
  template <class IsOne>
  void list(Column<uint32_t>& ids, Column<uint32_t>& places, IsOne is_one) {
    size_t count = 0;
    for (size_t i = 0; i < rows_.size(); ++i) count += is_one(out_.spans.kind[i]);
    ids.allocate(count);
    places.allocate(count);
    for (size_t i = 0, at = 0; i < rows_.size(); ++i) {
      if (!is_one(out_.spans.kind[i])) continue;
      ids[at] = uint32_t(i);
      places[at++] = place_[rows_[i]];
    }
  }

  // A column in another order; where nothing was recorded, none.
  template <class Source, class Target>
  static void take(Source& source, Target& target, const Column<uint32_t>& places) {
    target.allocate(places.size());
    for (size_t i = 0; i < places.size(); ++i) target[i] = source[places[i]];
    source.release();
  }
  template <class T>
  static void take(SparseColumn<T>& source, Column<T>& target, const Column<uint32_t>& places) {
    if (source.recorded()) {
      target.allocate(places.size());
      for (size_t i = 0; i < places.size(); ++i) target[i] = source[places[i]];
    }
    source.release();
  }

  void write_kernels() {
    // Device kinds share `place_`; kernels, and copies with sets, have columns of their own, in the same order.
    Column<uint32_t> among, places;
    among.resize(launch_.size());
    uint32_t kernels = 0, copies = 0, device = 0;
    for (size_t row = 0; row < count_; ++row) {
      const uint8_t kind = raw_.kind[row];
      if (!on_device(kind)) continue;
      among[device++] = kind == kKernel ? kernels++ : (kind == kCopy || kind == kSet) ? copies++ : 0;
    }
    raw_.kind.release();
    auto& to = out_.kernels;
    auto& from = raw_.kernel;
    list(to.span, places, [](uint8_t kind) { return kind == kKernel; });
    for (size_t i = 0; i < places.size(); ++i) places[i] = among[places[i]];
    for (int i = 0; i < 3; ++i) {
      take(from.grid[i], to.grid[i], places);
      take(from.block[i], to.block[i], places);
    }
    take(from.registers, to.registers, places);
    take(from.shared, to.shared, places);
    take(from.blocks_per_sm, to.blocks_per_sm, places);
    take(from.warps_per_sm, to.warps_per_sm, places);
    take(from.occupancy, to.occupancy, places);
    take(from.graph, to.graph, places);
    take(from.graph_node, to.graph_node, places);
    list(out_.copies.span, places, [](uint8_t kind) { return kind == kCopy || kind == kSet; });
    for (size_t i = 0; i < places.size(); ++i) places[i] = among[places[i]];
    take(raw_.copy_size, out_.copies.size, places);
  }

  void write_ops() {
    auto& to = out_.ops;
    auto& from = raw_.op;
    Column<uint32_t> places, python_places;
    auto& python = out_.python;
    list(to.span, places, [](uint8_t kind) { return kind == kOp; });
    list(python.span, python_places, [](uint8_t kind) { return kind == kPython; });
    of_rows(stack_, to.stack, to.span);
    of_rows(stack_, python.stack, python.span);
    stack_.release();
    modules_of(to.stack, to.module);
    modules_of(python.stack, python.module);
    take(caller_, python.caller, python_places);
    for (size_t i = 0; i < python.caller.size(); ++i) python.caller[i] = renamed(python.caller[i]);
    python_places.release();
    take(from.shapes, to.shapes, places);
    take(from.dtypes, to.dtypes, places);
    take(from.strides, to.strides, places);
    take(from.inputs, to.inputs, places);
    take(from.flops, to.flops, places);
    take(from.call_stack, to.call_stack, places);
    take(from.sequence, to.sequence, places);
    take(from.forward_thread, to.forward_thread, places);
    if (to.sequence.empty()) return;
    places.release();
    to.forward.fill(to.span.size(), kNullU32);
    int64_t least = INT64_MAX, greatest = 0;
    for (size_t i = 0; i < to.sequence.size(); ++i) {
      if (to.sequence[i] == kNullI64) continue;
      least = std::min(least, to.sequence[i]);
      greatest = std::max(greatest, to.sequence[i]);
    }
    if (least >= 0 && uint64_t(greatest - least) < 4 * uint64_t(to.span.size()) + 1024) {
      Column<uint32_t> latest;
      latest.fill(size_t(greatest - least) + 1, kNullU32);
      link_forward([&](int64_t sequence, uint32_t span) { latest[size_t(sequence - least)] = span; },
                   [&](int64_t sequence) { return latest[size_t(sequence - least)]; });
    } else {
      FlatMap latest(to.span.size() / 4);
      link_forward([&](int64_t sequence, uint32_t span) { latest[uint64_t(sequence)] = span; },
                   [&](int64_t sequence) { return latest.get(uint64_t(sequence)); });
    }
  }

  // A backward operator belongs to the last forward one with its sequence number.
  template <class Set, class Get>
  void link_forward(Set set, Get get) {
    auto& to = out_.ops;
    for (size_t i = 0; i < to.span.size(); ++i) {
      const int64_t sequence = to.sequence[i];
      if (sequence == kNullI64) continue;
      const int32_t thread = to.forward_thread.empty() ? kNullI32 : to.forward_thread[i];
      if (thread == 0 || thread == kNullI32) {
        set(sequence, to.span[i]);
      } else {
        to.forward[i] = get(sequence);
      }
    }
  }

  void modules_of(const Column<uint32_t>& stacks, Column<uint32_t>& target) {
    target.allocate(stacks.size());
    for (size_t i = 0; i < stacks.size(); ++i) target[i] = module_of(stacks[i]);
  }

  // Of a column by row, what spans have of it.
  void of_rows(const Column<uint32_t>& source, Column<uint32_t>& target, const Column<uint32_t>& spans) {
    target.allocate(spans.size());
    for (size_t i = 0; i < spans.size(); ++i) target[i] = source[rows_[spans[i]]];
  }

  void write_memory() {
    Column<uint32_t> rows;
    for (size_t row = 0; row < count_; ++row) {
      if (raw_.kind[row] == kMemory && kept(row)) rows.push(uint32_t(row));
    }
    Column<uint32_t> spare;
    sort_rows(rows, 0, rows.size(), spare, [this](uint32_t a, uint32_t b) {
      return raw_.start[a] != raw_.start[b] ? raw_.start[a] < raw_.start[b] : a < b;
    });
    auto& to = out_.memory;
    auto& from = raw_.memory;
    Column<uint32_t> places;
    for (auto* column : {&places, &to.op, &to.stack, &to.module}) column->allocate(rows.size());
    to.at.allocate(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const uint32_t row = rows[i];
      places[i] = place_[row];
      to.at[i] = raw_.start[row];
      to.op[i] = renamed(op_[row]);
      to.stack[i] = stack_[row];
      to.module[i] = module_of(stack_[row]);
    }
    take(from.bytes, to.bytes, places);
    take(from.address, to.address, places);
    take(from.device_type, to.device_type, places);
    take(from.device_id, to.device_id, places);
    take(from.allocated, to.allocated, places);
    take(from.reserved, to.reserved, places);
  }

  void write_args() {
    auto& from = raw_.args;
    Column<uint32_t> kept;
    for (size_t i = 0; i < from.row.size(); ++i) {
      from.row[i] = new_id_[from.row[i]];
      if (from.row[i] != kNullU32) kept.push(uint32_t(i));
    }
    Column<uint32_t> spare;
    sort_rows(kept, 0, kept.size(), spare, [&from](uint32_t a, uint32_t b) {
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
  Column<uint32_t> lane_rows_;  // each lane in order of start
  Column<uint32_t> rows_, new_id_, place_, parent_, op_, stack_, launch_, caller_;
  Column<uint32_t> stack_modules_;  // of each node of the stacks, the module around it
  Column<uint16_t> depth_;
  Column<int32_t> device_step_;
  std::vector<Call> calls_;
  size_t hint_ = 0;
  static constexpr size_t kLongJumps = 20;  // one in so many
  IdMap externals_;
  bool externals_ready_ = false;
};

}  // namespace foretrace
