// The records of a memory snapshot, made of the dictionaries of its pickle as soon as they are complete, and the rows that its
// root gives them. The twin of ingest/snapshot_records.py and snapshot_walk.py.
#pragma once

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "columns.hpp"

namespace foretrace::snapshots {

// Why a pickle is refused, and at which byte.
struct SnapshotFault : std::exception {
  SnapshotFault(std::string what_is_wrong, uint64_t byte) : says(std::move(what_is_wrong)), at(byte) {}
  std::string says;
  uint64_t at;
};

// A value on the stack: what it is in the top byte, the rest below. Numbers that do not fit lie in `Records`.
using Value = uint64_t;
enum class Tag : uint8_t { kAbsent, kNone, kTrue, kFalse, kText, kInteger, kSigned, kUnsigned, kHuge, kHugeNegative, kReal, kNode };
constexpr Value value_of(Tag tag, uint64_t payload = 0) { return uint64_t(tag) << 56 | (payload & 0x00FFFFFFFFFFFFFFull); }
constexpr Tag tag_of(Value value) { return Tag(value >> 56); }
constexpr uint64_t payload_of(Value value) { return value & 0x00FFFFFFFFFFFFFFull; }
constexpr Value kAbsent = 0, kNone = value_of(Tag::kNone), kTrue = value_of(Tag::kTrue), kFalse = value_of(Tag::kFalse);
inline bool is_node(Value value) { return tag_of(value) == Tag::kNode; }
inline bool is_missing(Value value) { return value == kAbsent || value == kNone; }

// What a list or dictionary is; the open ones may still grow.
enum class Kind : uint8_t {
  kList, kDict, kPair, kFrame, kStack, kEvent, kBlock, kSegment, kAnnotation, kHistory, kOpenList, kOpenDict
};

// The texts that have the first numbers, as in snapshot_columns.KEYS.
enum Key : uint32_t {
  kAction, kAddr, kDeviceFree, kSize, kStreamKey, kPoolId, kTimeUs, kFrames, kCompileContext, kUserMetadata, kFilename, kLine,
  kName, kTotalSize, kBlocks, kDeviceKey, kAddress, kAllocatedSize, kActiveSize, kRequestedSize, kSegmentType, kSegmentPoolId,
  kIsExpandable, kState, kRealSize, kHistoryKey, kStage, kOom, kSegments, kDeviceTraces, kHostSegments, kHostTraces,
  kExternalAnnotations, kAllocatorSettings, kActiveAllocated, kActivePendingFree, kActiveAwaitingFree, kInactive,
  kNotApplicable, kEmpty, kKeyCount
};
inline const char* const* key_names() {
  static const char* const kNames[kKeyCount] = {
      "action", "addr", "device_free", "size", "stream", "pool_id", "time_us", "frames", "compile_context", "user_metadata",
      "filename", "line", "name", "total_size", "blocks", "device", "address", "allocated_size", "active_size",
      "requested_size", "segment_type", "segment_pool_id", "is_expandable", "state", "real_size", "history", "stage", "oom",
      "segments", "device_traces", "host_segments", "host_traces", "external_annotations", "allocator_settings",
      "active_allocated", "active_pending_free", "active_awaiting_free", "inactive", "N/A", ""};
  return kNames;
}

constexpr int64_t kLatestUs = 9000000000000000;
constexpr uint64_t kRowsAtLeast = 1u << 16, kBytesPerRow = 16;
constexpr size_t kMostDevices = 1u << 16;

class Records {
 public:
  Records() {
    for (uint32_t key = 0; key < kKeyCount; ++key) texts.intern('t', key_names()[key], std::strlen(key_names()[key]));
  }

  Texts texts;
  struct { Column<int32_t> device; Column<uint64_t> address; Column<int64_t> total, allocated, active, requested, stream;
           Column<uint32_t> kind, pool; Column<uint8_t> expandable; Column<int32_t> stack; } segments;
  struct { Column<uint64_t> address; Column<int64_t> size, requested; Column<uint8_t> state; Column<int32_t> stack; } blocks;
  struct { Column<uint32_t> action; Column<uint64_t> address; Column<int64_t> size, stream; Column<uint32_t> pool;
           Column<int64_t> time; Column<int32_t> stack; Column<uint32_t> context, note; } events;
  struct { Column<int32_t> device; Column<uint32_t> stage, name; Column<int64_t> time; } annotations;
  struct { Column<uint32_t> file; Column<int32_t> line; Column<uint32_t> name; } frames;
  Column<uint64_t> stack_end;
  Column<uint32_t> stack_frame;
  struct { Column<uint32_t> row; Column<uint8_t> host; } segment_rows;
  struct { Column<uint32_t> row; Column<int32_t> segment; } block_rows;
  struct { Column<uint32_t> row; Column<int32_t> device; } event_rows;
  struct { Column<uint32_t> row; } annotation_rows;
  bool bare_list = false;
  Value settings = kNone;

  Column<uint64_t> slots;  // one for each list and dictionary: its kind in the top byte, then its row or its items
  uint64_t kept = 0;       // items in lists and dictionaries

  // --- values ------------------------------------------------------------------------------------------------------

  Value integer(int64_t value) { return integer(value < 0, value < 0 ? ~uint64_t(value) + 1 : uint64_t(value), false); }
  Value integer(bool negative, uint64_t magnitude, bool huge) {
    constexpr uint64_t kInline = uint64_t(1) << 55, kLimit = uint64_t(1) << 63;
    if (huge || (negative && magnitude > kLimit)) return value_of(negative ? Tag::kHugeNegative : Tag::kHuge);
    const uint64_t bits = negative ? ~magnitude + 1 : magnitude;
    if (magnitude < kInline) return value_of(Tag::kInteger, bits);
    numbers_.push(bits);
    return value_of(!negative && magnitude >= kLimit ? Tag::kUnsigned : Tag::kSigned, numbers_.size() - 1);
  }
  Value real(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, 8);
    numbers_.push(bits);
    return value_of(Tag::kReal, numbers_.size() - 1);
  }
  Value text(const char* text, size_t length) { return value_of(Tag::kText, texts.intern('t', text, length)); }

  static bool is_number(Value value) { return tag_of(value) >= Tag::kInteger && tag_of(value) <= Tag::kHugeNegative; }
  int64_t signed_of(Value value) const {  // of kInteger and kSigned
    if (tag_of(value) == Tag::kSigned) return int64_t(numbers_[size_t(payload_of(value))]);
    return int64_t(payload_of(value) << 8) >> 8;
  }
  uint64_t unsigned_of(Value value) const { return numbers_[size_t(payload_of(value))]; }
  double real_of(Value value) const {
    double real;
    std::memcpy(&real, &numbers_[size_t(payload_of(value))], 8);
    return real;
  }

  const char* told(Value value) const {
    static const char* const kNames[] = {"a list", "a dictionary", "a pair of numbers", "a frame", "a list of frames",
                                         "an event", "a block", "a segment", "an annotation", "a history", "a list",
                                         "a dictionary"};
    switch (tag_of(value)) {
      case Tag::kNode: return kNames[size_t(kind(value))];
      case Tag::kTrue:
      case Tag::kFalse: return "true or false";
      case Tag::kText: return "a text";
      case Tag::kReal: return "a fraction";
      case Tag::kAbsent:
      case Tag::kNone: return "None";
      default: return "a number";
    }
  }

  // --- lists and dictionaries -----------------------------------------------------------------------------------------

  Value node(Kind kind) {
    slots.push(slot_of(kind, kNoItems));
    return value_of(Tag::kNode, slots.size() - 1);
  }
  Kind kind(Value node) const { return Kind(slots[size_t(payload_of(node))] >> 56); }
  uint64_t row(Value node) const { return payload_of(slots[size_t(payload_of(node))]); }
  const Value* items(Value node) const { return count(node) ? stores_[size_t(row(node))].data() : nullptr; }
  size_t count(Value node) const { return row(node) == kNoItems ? 0 : stores_[size_t(row(node))].size(); }

  void extend(Value node, const Value* from, size_t count) {
    if (!count) return;
    kept += count;
    if (row(node) == kNoItems) {
      kept += kStoreCost;
      if (free_.empty()) {
        stores_.emplace_back();
        free_.push_back(stores_.size() - 1);
      }
      set(node, kind(node), free_.back());
      free_.pop_back();
    }
    Column<Value>& store = stores_[size_t(row(node))];
    for (size_t i = 0; i < count; ++i) store.push(from[i]);
  }

  // What goes into another value is as it will be: what it is can be told.
  void complete(Value node, uint64_t at) {
    if (kind(node) == Kind::kOpenDict) {
      if (!make(node, nullptr, 0, at)) set(node, Kind::kDict, row(node));
    } else if (kind(node) == Kind::kOpenList) {
      complete_list(node);
    }
  }

  // Makes a record of a dictionary with `count` more items, if its keys say that it is one.
  bool make(Value node, const Value* more, size_t count, uint64_t at) {
    Value fields[kKeyCount] = {};
    const Value* own = items(node);
    for (size_t i = 0, n = this->count(node); i < n; i += 2) take(fields, own[i], own[i + 1]);
    for (size_t i = 0; i < count; i += 2) take(fields, more[i], more[i + 1]);
    static constexpr struct { Key key; Kind kind; } kTelling[] = {
        {kAction, Kind::kEvent},    {kFilename, Kind::kFrame}, {kTotalSize, Kind::kSegment},  {kBlocks, Kind::kSegment},
        {kRealSize, Kind::kHistory}, {kState, Kind::kBlock},   {kTimeUs, Kind::kAnnotation}};
    for (const auto& telling : kTelling) {
      if (fields[telling.key] == kAbsent) continue;
      fields_ = fields;
      at_ = at;
      const uint64_t row = make_record(telling.kind);
      drop(node);
      set(node, telling.kind, row);
      return true;
    }
    return false;
  }

  // --- the rows of the root -----------------------------------------------------------------------------------------

  void walk(Value root, uint64_t at) {
    at_ = at;
    Value members[kKeyCount] = {};
    if (is_node(root) && kind(root) == Kind::kList && count(root)) {
      bare_list = true;
      members[kSegments] = root;
    } else if (is_node(root) && kind(root) == Kind::kDict) {
      const Value* own = items(root);
      for (size_t i = 0, n = count(root); i < n; i += 2) take(members, own[i], own[i + 1]);
    }
    if (members[kSegments] == kAbsent && members[kDeviceTraces] == kAbsent) {
      fail("it holds neither segments nor device_traces, so it is no memory snapshot");
    }
    walk_segments(members[kSegments], "segments", 0);
    walk_segments(members[kHostSegments], "host_segments", 1);
    walk_traces(members[kDeviceTraces]);
    walk_host_traces(members[kHostTraces]);
    check(members[kExternalAnnotations], "external_annotations", Kind::kAnnotation);
    for (size_t i = 0, n = count_of(members[kExternalAnnotations]); i < n; ++i) {
      add_row();
      annotation_rows.row.push(uint32_t(row(items(members[kExternalAnnotations])[i])));
    }
    settings = members[kAllocatorSettings];
  }

 private:
  static constexpr uint64_t kStoreCost = 16;  // of a list or dictionary with items, in values
  static constexpr uint64_t kNoItems = 0x00FFFFFFFFFFFFFFull;
  static constexpr int32_t kNoStack = -1;

  [[noreturn]] void fail(const std::string& says) const { throw SnapshotFault(says, at_); }
  [[noreturn]] void wrong(const char* what, Key key, const char* says) const {
    fail(std::string("the field ") + key_names()[key] + " of " + what + " is " + says);
  }

  static uint64_t slot_of(Kind kind, uint64_t payload) { return uint64_t(kind) << 56 | payload; }
  void set(Value node, Kind kind, uint64_t row) { slots[size_t(payload_of(node))] = slot_of(kind, row); }
  static void take(Value* fields, Value key, Value value) {
    if (tag_of(key) == Tag::kText && payload_of(key) < kKeyCount) fields[payload_of(key)] = value;
  }
  void drop(Value node) {
    if (row(node) == kNoItems) return;
    Column<Value>& store = stores_[size_t(row(node))];
    kept -= store.size() + kStoreCost;
    if (store.size() > 4096) {
      store.release();
    } else {
      store.clear();
    }
    free_.push_back(size_t(row(node)));
    set(node, kind(node), kNoItems);
  }

  void complete_list(Value node) {
    const Value* own = items(node);
    const size_t size = count(node);
    bool all_frames = size > 0;
    for (size_t i = 0; all_frames && i < size; ++i) all_frames = is_node(own[i]) && kind(own[i]) == Kind::kFrame;
    if (all_frames) {
      const uint64_t number = stack_of(own, size);
      drop(node);
      set(node, Kind::kStack, number);
    } else if (size == 2 && tag_of(own[0]) == Tag::kInteger && tag_of(own[1]) == Tag::kInteger) {
      const std::string pair = std::to_string(signed_of(own[0])) + "," + std::to_string(signed_of(own[1]));
      drop(node);
      set(node, Kind::kPair, texts.intern('t', pair.data(), pair.size()));
    } else {
      set(node, Kind::kList, row(node));
    }
  }

  uint64_t stack_of(const Value* own, size_t size) {
    scratch_.clear();
    for (size_t i = 0; i < size; ++i) scratch_.push(uint32_t(row(own[i])));
    const uint32_t number = stacks_.intern('s', reinterpret_cast<const char*>(scratch_.data()), size * 4);
    if (number == stack_end.size()) {
      stack_frame.append(scratch_);
      stack_end.push(stack_frame.size());
    }
    return number;
  }

  // --- fields of the record that is being made ------------------------------------------------------------------------

  int64_t number(const char* what, Key key, int64_t low, int64_t high, const int64_t* null = nullptr) const {
    const Value value = fields_[key];
    if (is_missing(value)) {
      if (!null) wrong(what, key, "missing");
      return *null;
    }
    if (!is_number(value)) wrong(what, key, told(value));
    const bool fits = tag_of(value) == Tag::kInteger || tag_of(value) == Tag::kSigned;
    const int64_t whole = fits ? signed_of(value) : 0;
    const bool negative = fits ? whole < 0 : tag_of(value) == Tag::kHugeNegative;
    if (!fits || whole < low || whole > high) wrong(what, key, negative && low >= 0 ? "negative" : "out of range");
    return whole;
  }
  // 0 where the frame has none: torch writes that of Python 3.13 as 2^64 - 1.
  int32_t line_of(Value value) const {
    if (is_missing(value)) return 0;
    if (!is_number(value)) wrong("a frame", kLine, told(value));
    const bool fits = tag_of(value) == Tag::kInteger || tag_of(value) == Tag::kSigned;
    const int64_t whole = fits ? signed_of(value) : 0;
    return whole < 0 || whole > INT32_MAX ? 0 : int32_t(whole);
  }
  int64_t size_field(const char* what, Key key) const { return number(what, key, 0, INT64_MAX); }
  int64_t optional_size(const char* what, Key key) const { return number(what, key, 0, INT64_MAX, &kNullI64); }
  uint64_t address(const char* what, Key key, bool optional) const {
    const Value value = fields_[key];
    if (is_missing(value)) {
      if (!optional) wrong(what, key, "missing");
      return kNullU64;
    }
    if (!is_number(value)) wrong(what, key, told(value));
    switch (tag_of(value)) {
      case Tag::kUnsigned: return unsigned_of(value);
      case Tag::kHugeNegative: wrong(what, key, "negative");
      case Tag::kHuge: wrong(what, key, "out of range");
      default: break;
    }
    const int64_t whole = signed_of(value);
    if (whole < 0) wrong(what, key, "negative");
    return uint64_t(whole);
  }
  int64_t stream(const char* what) const { return number(what, kStreamKey, -INT64_MAX, INT64_MAX, &kNullI64); }
  int64_t time(const char* what) const {
    const int64_t time = number(what, kTimeUs, -kLatestUs, kLatestUs, &kNullI64);
    return time == kNullI64 ? time : time * 1000;
  }
  uint32_t text_field(const char* what, Key key) const {
    const Value value = fields_[key];
    if (tag_of(value) != Tag::kText) wrong(what, key, is_missing(value) ? "missing" : told(value));
    return uint32_t(payload_of(value));
  }
  // Null where it is `nothing`, no text or missing.
  uint32_t optional_text(Key key, Key nothing) const {
    const Value value = fields_[key];
    return tag_of(value) == Tag::kText && payload_of(value) != nothing ? uint32_t(payload_of(value)) : kNullU32;
  }
  int32_t stack_field(const char* what) const {
    const Value value = fields_[kFrames];
    if (is_missing(value)) return kNoStack;
    if (is_node(value)) {
      if (kind(value) == Kind::kStack) return int32_t(row(value));
      if (kind(value) == Kind::kList && !count(value)) return kNoStack;
    }
    wrong(what, kFrames, told(value));
  }
  uint32_t pool(const char* what, Key key) const {
    const Value value = fields_[key];
    if (is_missing(value)) return kNullU32;
    if (is_node(value) && kind(value) == Kind::kPair) return uint32_t(row(value));
    wrong(what, key, told(value));
  }
  int32_t device(const char* what) const {
    static constexpr int64_t kFirst = 0;
    return int32_t(number(what, kDeviceKey, -1, INT32_MAX, &kFirst));
  }

  uint64_t make_record(Kind kind) {
    switch (kind) {
      case Kind::kEvent: return make_event();
      case Kind::kFrame: return make_frame();
      case Kind::kSegment: return make_segment();
      case Kind::kHistory: return make_history();
      case Kind::kBlock: return make_block();
      default: return make_annotation();
    }
  }

  uint64_t make_frame() {
    const int32_t line = line_of(fields_[kLine]);
    const uint32_t file = text_field("a frame", kFilename), name = text_field("a frame", kName);
    char key[12];
    std::memcpy(key, &file, 4);
    std::memcpy(key + 4, &line, 4);
    std::memcpy(key + 8, &name, 4);
    const uint32_t number = known_frames_.intern('f', key, sizeof key);
    if (number == frames.file.size()) {
      frames.file.push(file);
      frames.line.push(line);
      frames.name.push(name);
    }
    return number;
  }

  uint64_t make_event() {
    const char* what = "an event";
    const uint32_t action = text_field(what, kAction);
    const bool free = action == kOom && !is_missing(fields_[kDeviceFree]);
    events.action.push(action);
    events.address.push(address(what, free ? kDeviceFree : kAddr, true));
    events.size.push(size_field(what, kSize));
    events.stream.push(stream(what));
    events.pool.push(pool(what, kPoolId));
    events.time.push(time(what));
    events.stack.push(stack_field(what));
    events.context.push(optional_text(kCompileContext, kNotApplicable));
    events.note.push(optional_text(kUserMetadata, kEmpty));
    return events.action.size() - 1;
  }

  uint64_t make_history() {
    history_size_.push(optional_size("a history", kRealSize));
    history_stack_.push(stack_field("a history"));
    return history_size_.size() - 1;
  }

  uint64_t make_block() {
    const char* what = "a block";
    const uint64_t place = address(what, kAddress, true);
    const int64_t size = size_field(what, kSize);
    int64_t requested = optional_size(what, kRequestedSize);
    const uint32_t state = text_field(what, kState);
    if (state < kActiveAllocated || state > kInactive) wrong(what, kState, "none that is known");
    int32_t stack = stack_field(what);
    const Value history = fields_[kHistoryKey];  // of torch before 2.1, instead of `frames`
    if (is_node(history) && kind(history) == Kind::kList && count(history)) {
      const Value first = items(history)[0];
      if (is_node(first) && kind(first) == Kind::kHistory) {
        if (requested == kNullI64) requested = history_size_[size_t(row(first))];
        if (stack == kNoStack) stack = history_stack_[size_t(row(first))];
      }
    }
    blocks.address.push(place);
    blocks.size.push(size);
    blocks.requested.push(requested);
    blocks.state.push(state == kActiveAllocated ? 0 : state == kInactive ? 2 : 1);
    blocks.stack.push(stack);
    return blocks.size.size() - 1;
  }

  uint64_t make_segment() {
    const char* what = "a segment";
    const Value own = fields_[kBlocks], expandable = fields_[kIsExpandable];
    if (!is_missing(own) && !(is_node(own) && kind(own) == Kind::kList)) wrong(what, kBlocks, told(own));
    if (!is_missing(expandable) && expandable != kTrue && expandable != kFalse) {
      wrong(what, kIsExpandable, told(expandable));
    }
    segments.device.push(device(what));
    segments.address.push(address(what, kAddress, false));
    segments.total.push(size_field(what, kTotalSize));
    segments.allocated.push(optional_size(what, kAllocatedSize));
    segments.active.push(optional_size(what, kActiveSize));
    segments.requested.push(optional_size(what, kRequestedSize));
    segments.stream.push(stream(what));
    segments.kind.push(optional_text(kSegmentType, kEmpty));
    segments.pool.push(pool(what, kSegmentPoolId));
    segments.expandable.push(expandable == kTrue);
    segments.stack.push(stack_field(what));
    blocks_of_.push(own);
    return blocks_of_.size() - 1;
  }

  uint64_t make_annotation() {
    annotations.device.push(device("an annotation"));
    annotations.stage.push(optional_text(kStage, kEmpty));
    annotations.name.push(optional_text(kName, kEmpty));
    annotations.time.push(time("an annotation"));
    return annotations.time.size() - 1;
  }

  // --- the walk --------------------------------------------------------------------------------------------------------

  void add_row() {
    if (++row_count_ > kRowsAtLeast + at_ / kBytesPerRow) {
      fail("it stands for more rows than a file of this size can hold");
    }
  }
  size_t count_of(Value list) const { return is_missing(list) ? 0 : count(list); }
  void check_list(Value value, const char* what) const {
    if (is_missing(value)) return;
    if (!is_node(value) || kind(value) != Kind::kList) fail(std::string(what) + " is " + told(value));
  }
  // Whether a value is a list of records of one kind, or missing.
  void check(Value value, const char* what, Kind wanted) const {
    check_list(value, what);
    for (size_t i = 0, n = count_of(value); i < n; ++i) {
      const Value item = items(value)[i];
      if (!is_node(item) || kind(item) != wanted) fail(std::string("in ") + what + " stands " + told(item));
    }
  }

  void walk_segments(Value list, const char* what, uint8_t host) {
    check(list, what, Kind::kSegment);
    for (size_t i = 0, n = count_of(list); i < n; ++i) {
      const int32_t segment = int32_t(segment_rows.row.size());
      const uint64_t number = row(items(list)[i]);
      add_row();
      segment_rows.row.push(uint32_t(number));
      segment_rows.host.push(host);
      const Value own = blocks_of_[size_t(number)];
      check(own, "blocks", Kind::kBlock);
      for (size_t b = 0, m = count_of(own); b < m; ++b) {
        add_row();
        block_rows.row.push(uint32_t(row(items(own)[b])));
        block_rows.segment.push(segment);
      }
    }
  }

  void walk_events(Value list, const char* what, int32_t device) {
    check(list, what, Kind::kEvent);
    for (size_t i = 0, n = count_of(list); i < n; ++i) add_event(items(list)[i], device);
  }
  void add_event(Value event, int32_t device) {
    add_row();
    event_rows.row.push(uint32_t(row(event)));
    event_rows.device.push(device);
  }

  void walk_traces(Value traces) {
    check_list(traces, "device_traces");
    const size_t devices = count_of(traces);
    if (devices > kMostDevices) fail("device_traces has " + std::to_string(devices) + " devices");
    for (size_t i = 0; i < devices; ++i) walk_events(items(traces)[i], "device_traces", int32_t(i));
  }

  // One history, or a list of them.
  void walk_host_traces(Value traces) {
    check_list(traces, "host_traces");
    for (size_t i = 0, n = count_of(traces); i < n; ++i) {
      const Value item = items(traces)[i];
      if (is_node(item) && kind(item) == Kind::kEvent) {
        add_event(item, -1);
      } else {
        walk_events(item, "host_traces", -1);
      }
    }
  }

  Column<uint64_t> numbers_;            // those that do not fit into a value
  std::vector<Column<Value>> stores_;   // items of lists and dictionaries
  std::vector<size_t> free_;            // stores that nobody uses
  Texts known_frames_, stacks_;         // frames and stacks by content
  Column<uint32_t> scratch_;
  Column<Value> blocks_of_;             // of each segment
  Column<int64_t> history_size_;
  Column<int32_t> history_stack_;
  const Value* fields_ = nullptr;
  uint64_t at_ = 0, row_count_ = 0;
};

}  // namespace foretrace::snapshots
