// One whole event becomes rows. The rules are those of kineto_python.Scanner, in the same order.
#pragma once

#include <future>

#include "scanner.hpp"

namespace foretrace {

// The text of a string in which ASCII was written as \u00XX; other escapes stay as they are, since no category has them.
inline std::string without_escapes(const Token& token) {
  std::string text;
  for (uint32_t i = 0; i < token.length; ++i) {
    const char* p = token.text + i;
    if (*p == '\\' && token.length - i >= 6 && !std::memcmp(p + 1, "u00", 3) && is_hex(p[4]) && is_hex(p[5]) && p[4] < '8') {
      text += char(std::stoi(std::string(p + 4, 2), nullptr, 16));
      i += 5;
    } else {
      text += *p;
      if (*p == '\\' && i + 1 < token.length) text += token.text[++i];
    }
  }
  return text;
}

inline int category_kind(const std::string& category) {
  static const std::unordered_map<std::string, int> kKinds = {
      {"cpu_op", kOp}, {"Operator", kOp}, {"hpu_op", kOp}, {"privateuse1_op", kOp},
      {"user_annotation", kAnnotation}, {"gpu_user_annotation", kAnnotation}, {"python_function", kPython},
      {"cuda_runtime", kRuntime}, {"cuda_driver", kRuntime}, {"Runtime", kRuntime}, {"xpu_runtime", kRuntime},
      {"xpu_driver", kRuntime}, {"mtia_runtime", kRuntime}, {"privateuse1_runtime", kRuntime},
      {"privateuse1_driver", kRuntime}, {"glow_runtime", kRuntime}, {"kernel", kKernel}, {"Kernel", kKernel},
      {"concurrent_kernel", kKernel}, {"collective_comm", kKernel}, {"mtia_ccp_events", kKernel},
      {"gpu_memcpy", kCopy}, {"Memcpy", kCopy},
      {"gpu_memset", kSet}, {"Memset", kSet}, {"cuda_sync", kSync}, {"cuda_event", kSync}, {"xpu_sync", kSync},
      {"overhead", kOverhead}};
  const auto found = kKinds.find(category);
  return found == kKinds.end() ? int(kAnnotation) : found->second;
}

// The number in "ProfilerStep#12", or -1.
inline int64_t step_number(const char* text, size_t length) {
  static const char kPrefix[] = "ProfilerStep#";
  constexpr size_t kPrefixLength = sizeof kPrefix - 1;
  if (length <= kPrefixLength || length > kPrefixLength + 9 || std::memcmp(text, kPrefix, kPrefixLength)) return -1;
  int64_t number = 0;
  for (size_t i = kPrefixLength; i < length; ++i) {
    if (!is_digit(text[i])) return -1;
    number = number * 10 + (text[i] - '0');
  }
  return number;
}

inline void to_triple(const Token& token, int32_t (&sizes)[3]) {
  if (token.type != Type::kContainer || token.text[0] != '[') return;
  const char* p = token.text + 1;
  const char* const end = token.text + token.length - 1;
  for (int i = 0; i < 3; ++i) {
    p = skip_space(p, end);
    Token item;
    uint8_t notes = 0;
    if (p >= end || scan_value(p, end + 1, notes, &item) != Status::kOk) return;
    sizes[i] = int32_t(to_i64(item, kNullI32, 31));
    p = skip_space(p, end);
    if (p < end && *p == ',') ++p;
  }
}

// Containers were only skipped so far: each distinct one is looked into once, when it is first seen.
inline Status Scanner::check_args() {
  if (!event_.unknown) return Status::kOk;
  for (Argument& argument : event_.args) {
    const Token& token = argument.token;
    if (token.type != Type::kContainer || argument.code != kNullU32) continue;
    argument.code = raw.texts.find('j', token.text, token.length);
    if (argument.code != kNullU32) {
      event_.notes |= argument.code < raw.text_notes.size() ? raw.text_notes[argument.code] : uint8_t(0);
    } else if (check_container(token, 2, &argument.notes) != Status::kOk) {
      return Status::kDamaged;
    }
  }
  return Status::kOk;
}

// A list where a number belongs is kept only to know it again; one that may not be UTF-8 would be counted as a text.
inline bool Scanner::worth_keeping(const Argument& argument, uint8_t kind) const {
  const uint32_t key = meaning(argument.key);
  if (key >= kArgCount || !(kKnownArgs[kind] & bit(key) & ~kTextArgs)) return true;
  const char* const end = argument.token.text + argument.token.length;
  return std::all_of(argument.token.text, end, [](char c) { return (c & 0x80) == 0 && c != '\\'; });
}

inline void Scanner::intern_args(uint8_t kind) {
  if (!event_.unknown) return;
  for (Argument& argument : event_.args) {
    const Token& token = argument.token;
    if (token.type != Type::kContainer) continue;
    if (argument.code == kNullU32) {
      if (!worth_keeping(argument, kind)) continue;
      argument.code = raw.texts.intern('j', token.text, token.length);
      if (argument.notes & kBareWord) {
        raw.text_notes.resize(raw.texts.size(), 0);
        raw.text_notes[argument.code] = kBareWord;
      }
    }
    if (!event_.notes && token.text[0] == '[') containers_[argument.guess] = argument.code;
  }
}

inline Status Scanner::commit(int64_t offset) {
  if (check_args() != Status::kOk) return Status::kDamaged;
  if (event_.repeated) drop_repeats();
  if (event_.notes) {
    if (event_.notes & kBadEscape) raw.repair(kNoteBadEscape, offset);
    if (event_.notes & kBareWord) raw.repair(kNoteBareWord, offset);
    if (event_.notes & kControl) raw.repair(kNoteControl, offset);
    if (event_.notes & kRawQuote) raw.repair(kNoteRawQuote, offset);
  }
  ++raw.events;
  const char phase = event_.has(kPh) ? phase_letter(event_.field[kPh]) : 0;
  if (!phase) {
    raw.repair(kNotAnEvent, offset);
    return Status::kOk;
  }
  if (phase == 's' || phase == 't' || phase == 'f') {
    ++raw.flows;
    return Status::kOk;
  }
  const uint32_t lane = lane_of();
  if (phase == 'M') {
    const Token* label = find_arg(kArgName);
    if (!label) label = find_arg(kArgLabels);
    if (label && label->type == Type::kString) {
      raw.labels.track.push(lane);
      raw.labels.name.push(name_code());
      raw.labels.text.push(raw.texts.intern('s', label->text, label->length));
    }
    return Status::kOk;
  }
  if (phase != 'X' && phase != 'i' && phase != 'I' && phase != 'C') {
    ++raw.skipped_phase;
    return Status::kOk;
  }
  int64_t at;
  if (!event_.has(kTs) || !to_nanoseconds(event_.field[kTs], at)) {
    raw.repair(kNoTime, offset);
    return Status::kOk;
  }
  if (phase == 'C') {
    for (const Argument& each : event_.args) {
      const double value = to_real(each.token);
      if (std::isnan(value)) continue;
      raw.counters.track.push(lane);
      raw.counters.at.push(at);
      raw.counters.name.push(name_code());
      raw.counters.key.push(key_code(each.key));
      raw.counters.value.push(value);
    }
    return Status::kOk;
  }
  if (phase == 'X') {
    const Token none{"", 0, Type::kNull};
    return commit_span(event_.has(kCat) ? event_.field[kCat] : none, offset, at, lane);
  }
  if (name_is("[memory]")) return commit_memory(at, lane);
  raw.instants.name.push(name_code());
  raw.instants.at.push(at);
  return Status::kOk;
}

inline uint32_t Scanner::lane_of() {
  if (last_lane_number_ != kNullU32 && event_.has(kPid) && event_.has(kTid) && last_process_.is(event_.field[kPid]) &&
      last_thread_.is(event_.field[kTid])) {
    return last_lane_number_;
  }
  LaneKey key{0, 0, 0};
  for (int i = 0; i < 2; ++i) {
    const EventKey field = i ? kTid : kPid;
    int64_t& value = i ? key.thread : key.process;
    Token token = event_.has(field) ? event_.field[field] : Token{"", 0, Type::kNull};
    if (token.type == Type::kInteger) {
      value = to_i64(token, kNullI64);
      if (value != kNullI64) continue;
      value = raw.texts.intern('i', token.text, token.length);  // too large for 64 bits: kept as digits
      key.text |= uint8_t(1 << i);
      continue;
    }
    const bool text = token.type == Type::kString || token.type == Type::kNumber || token.type == Type::kWord;
    value = raw.texts.intern('s', text ? token.text : "", text ? token.length : 0);
    key.text |= uint8_t(1 << i);
  }
  const Token none{"", 0, Type::kNull};
  last_process_.set(event_.has(kPid) && event_.field[kPid].type == Type::kInteger ? event_.field[kPid] : none);
  last_thread_.set(event_.has(kTid) && event_.field[kTid].type == Type::kInteger ? event_.field[kTid] : none);
  const auto added = lane_index_.emplace(key, uint32_t(raw.lanes.size()));
  if (added.second) {
    raw.lanes.push_back(Raw::Lane{{(key.text & 1) != 0, (key.text & 2) != 0}, {key.process, key.thread}});
    raw.lane_device.push_back(kNullI64);
    raw.lane_stream.push_back(kNullI64);
  }
  return last_lane_number_ = added.first->second;
}

inline int64_t Scanner::duration(int64_t offset) {
  int64_t value;
  if (!event_.has(kDur) || !to_nanoseconds(event_.field[kDur], value)) {
    raw.repair(kNoDuration, offset);
  } else if (value < 0) {
    raw.repair(kNegativeDuration, offset);
  } else if (value > kLongestNs) {
    raw.repair(kAbsurdDuration, offset);
  } else {
    return value;
  }
  return kNullI64;
}

inline uint32_t Scanner::text_code(const Token& token, uint32_t code, bool& sound) {
  sound = token.type == Type::kString || token.type == Type::kContainer;
  if (!sound || code != kNullU32) return code;
  return raw.texts.intern(token.type == Type::kString ? 's' : 'j', token.text, token.length);
}

// Of a key that was written twice, the last value counts, at the first one's place.
inline void Scanner::drop_repeats() {
  Arguments& args = event_.args;
  std::unordered_map<uint32_t, size_t> places;  // only for long lists: a short one is searched faster
  const bool many = args.size() > 64;
  size_t kept = 0;
  for (size_t i = 0; i < args.size(); ++i) {
    size_t place = 0;
    if (many) {
      place = places.emplace(args[i].key, kept).first->second;
    } else {
      while (place < kept && args[place].key != args[i].key) ++place;
    }
    if (place != i) args[place] = args[i];
    if (place == kept) ++kept;
  }
  args.shorten(kept);
}

inline void Scanner::argument(uint32_t row, const Argument& argument) {
  const Token& token = argument.token;
  uint8_t type = 2;  // 0 integer, 1 float, 2 text: ARG_* of columns.py
  int64_t value;
  if (token.type == Type::kInteger || token.type == Type::kTrue || token.type == Type::kFalse) {
    value = to_i64(token, kNullI64);
    type = 0;
    if (value == kNullI64) {
      value = raw.texts.intern('i', token.text, token.length);
      type = 2;
    }
  } else if (token.type == Type::kNumber) {
    const double number = to_real(token);
    if (std::isnan(number)) return;
    std::memcpy(&value, &number, 8);
    type = 1;
  } else {
    bool sound;
    value = text_code(token, argument.code, sound);
    if (!sound) return;
  }
  raw.args.row.push(row);
  raw.args.key.push(key_code(argument.key));
  raw.args.type.push(type);
  raw.args.value.push(value);
}

inline Status Scanner::commit_memory(int64_t at, uint32_t lane) {
  const auto number = [&](uint32_t key) {
    const Token* token = find_arg(key);
    return token ? to_i64(*token, kNullI64) : kNullI64;
  };
  const int64_t bytes = number(kMemoryBytes);
  if (bytes == kNullI64) return Status::kOk;
  raw.start.push(at);
  raw.dur.push(kNullI64);
  raw.name.push(kNullU32);
  raw.lane.push(lane);
  raw.kind.push(kMemory);
  const Token* address = find_arg(kAddr);
  raw.memory.bytes.push(bytes);
  raw.memory.address.push(address ? to_u64(*address) : kNullU64);
  raw.memory.device_type.push(number(kDeviceType));
  raw.memory.device_id.push(number(kDeviceId));
  raw.memory.allocated.push(number(kAllocated));
  raw.memory.reserved.push(number(kReserved));
  return Status::kOk;
}

inline Status Scanner::commit_span(const Token& category, int64_t offset, int64_t at, uint32_t lane) {
  const int64_t dur = duration(offset);
  const uint32_t name = name_code();
  remember_name(name);
  uint8_t kind = kAnnotation;
  bool gpu_annotation = false;
  if (category.type == Type::kString) {
    const uint32_t code = last_category_.is(category) ? last_category_code_
                                                      : raw.categories.intern('s', category.text, category.length);
    last_category_code_ = code;
    last_category_.set(category);
    if (code >= category_kind_.size()) {
      const std::string plain = without_escapes(category);
      const bool gpu = plain == "gpu_user_annotation";
      category_kind_.push_back(int16_t(plain == "Trace" ? -1 : gpu ? 0x100 + kAnnotation : category_kind(plain)));
    }
    if (category_kind_[code] < 0) {
      raw.windows.name.push(name);
      raw.windows.start.push(at);
      raw.windows.dur.push(dur);
      return Status::kOk;
    }
    gpu_annotation = category_kind_[code] >= 0x100;
    kind = uint8_t(category_kind_[code] & 0xFF);
  }
  if (kind == kOp && step_number(raw.names.text(name) + 1, raw.names.length(name) - 1) >= 0) kind = kAnnotation;
  const uint32_t row = uint32_t(raw.start.size());
  raw.start.push(at);
  raw.dur.push(dur);
  raw.name.push(name);
  raw.lane.push(lane);
  raw.kind.push(kind);
  if (gpu_annotation) raw.gpu_annotations.push(row);

  intern_args(kind);
  const Token absent{"", 0, Type::kNull};
  Token field[kArgCount];
  uint32_t code[kArgCount];
  uint64_t seen = 0;
  for (const Argument& each : event_.args) {
    const uint32_t key = meaning(each.key);
    if (key < kArgCount && (kKnownArgs[kind] & bit(key))) {
      field[key] = each.token;
      code[key] = each.code;
      seen |= bit(key);
    } else {
      argument(row, each);
    }
  }
  const auto get = [&](uint32_t key) -> const Token& { return (seen & bit(key)) ? field[key] : absent; };
  const auto text = [&](uint32_t key) {
    bool sound;
    return (seen & bit(key)) ? text_code(field[key], code[key], sound) : kNullU32;
  };
  const auto number = [&](uint32_t key) { return to_i64(get(key), kNullI64); };
  const auto real = [&](uint32_t key) { return to_real(get(key)); };

  switch (kind) {
    case kOp:
      raw.op.shapes.push(text(kShapes));
      raw.op.dtypes.push(text(kDtypes));
      raw.op.strides.push(text(kStrides));
      raw.op.inputs.push(text(kInputs));
      raw.op.call_stack.push(text(kCallStack));
      raw.op.external.push(to_u64(get(kExternal)));
      raw.op.sequence.push(number(kSequence));
      raw.op.forward_thread.push(int32_t(to_i64(get(kForwardThread), kNullI32, 31)));
      raw.op.flops.push(number(kFlops));
      break;
    case kPython:
      raw.python.id.push(number(kPythonId));
      raw.python.parent.push(number(kPythonParent));
      break;
    case kRuntime:
      raw.runtime.external.push(to_u64(get(kExternal)));
      raw.runtime.correlation.push(to_u64(get(kCorrelation)));
      break;
    case kKernel: {
      int32_t grid[3] = {kNullI32, kNullI32, kNullI32}, block[3] = {kNullI32, kNullI32, kNullI32};
      to_triple(get(kGrid), grid);
      to_triple(get(kBlock), block);
      for (int i = 0; i < 3; ++i) {
        raw.kernel.grid[i].push(grid[i]);
        raw.kernel.block[i].push(block[i]);
      }
      raw.kernel.registers.push(int32_t(to_i64(get(kRegisters), kNullI32, 31)));
      raw.kernel.shared.push(number(kShared));
      raw.kernel.blocks_per_sm.push(real(kBlocksPerSm));
      raw.kernel.warps_per_sm.push(real(kWarpsPerSm));
      raw.kernel.occupancy.push(real(kOccupancy));
      raw.kernel.graph.push(number(kGraph));
      raw.kernel.graph_node.push(number(kGraphNode));
      break;
    }
    case kCopy: case kSet:
      raw.copy_size.push(number(kBytes));
      break;
    default:
      break;
  }
  if (on_device(kind)) {
    raw.device.external.push(to_u64(get(kExternal)));
    raw.device.correlation.push(to_u64(get(kCorrelation)));
    if (raw.lane_device[lane] == kNullI64) {
      raw.lane_device[lane] = number(kDevice);
      if (raw.lane_device[lane] != kNullI64) raw.lane_stream[lane] = number(kStream);
    }
  }
  return Status::kOk;
}

// Runs two pieces of work, side by side if there is enough of it.
template <class First, class Second>
void in_both(bool much, First first, Second second) {
  std::future<void> other = std::async(much ? std::launch::async : std::launch::deferred, first);
  second();
  other.get();
}

// Appends what another scanner read behind this one's bytes.
inline void merge(Scanner& into, Scanner& from) {
  Raw& a = into.raw;
  Raw& b = from.raw;
  std::vector<uint32_t> names(b.names.size()), texts(b.texts.size()), lanes(b.lanes.size());
  for (size_t i = 0; i < names.size(); ++i) {
    names[i] = a.names.intern(b.names.text(i)[0], b.names.text(i) + 1, b.names.length(i) - 1);
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    texts[i] = a.texts.intern(b.texts.text(i)[0], b.texts.text(i) + 1, b.texts.length(i) - 1);
  }
  for (size_t i = 0; i < lanes.size(); ++i) {
    const Raw::Lane& lane = b.lanes[i];
    Scanner::LaneKey key{lane.value[0], lane.value[1], uint8_t(lane.text[0] | (lane.text[1] << 1))};
    if (lane.text[0]) key.process = texts[size_t(lane.value[0])];
    if (lane.text[1]) key.thread = texts[size_t(lane.value[1])];
    const auto added = into.lane_index_.emplace(key, uint32_t(a.lanes.size()));
    lanes[i] = added.first->second;
    if (added.second) {
      a.lanes.push_back(Raw::Lane{{lane.text[0], lane.text[1]}, {key.process, key.thread}});
      a.lane_device.push_back(kNullI64);
      a.lane_stream.push_back(kNullI64);
    }
    if (a.lane_device[lanes[i]] == kNullI64) {
      a.lane_device[lanes[i]] = b.lane_device[i];
      a.lane_stream[lanes[i]] = b.lane_stream[i];
    }
  }
  const uint32_t rows = uint32_t(a.start.size());
  const auto recode = [](Column<uint32_t>& column, const std::vector<uint32_t>& codes) {
    for (size_t i = 0; i < column.size(); ++i) {
      if (column[i] != kNullU32) column[i] = codes[column[i]];
    }
  };
  const auto shift = [rows](Column<uint32_t>& column) {
    for (size_t i = 0; i < column.size(); ++i) column[i] += rows;
  };
  const auto move = [](auto& to, auto& from) {
    to.append(from);
    from.release();
  };
  const auto spans = [&] {
    recode(b.name, names);
    recode(b.lane, lanes);
    shift(b.gpu_annotations);
    move(a.start, b.start);
    move(a.dur, b.dur);
    move(a.name, b.name);
    move(a.lane, b.lane);
    move(a.kind, b.kind);
    move(a.gpu_annotations, b.gpu_annotations);
  };
  const auto others = [&] {
    for (auto* column : {&b.op.shapes, &b.op.dtypes, &b.op.strides, &b.op.inputs}) recode(*column, texts);
    move(a.op.shapes, b.op.shapes);
    move(a.op.dtypes, b.op.dtypes);
    move(a.op.strides, b.op.strides);
    move(a.op.inputs, b.op.inputs);
    move(a.op.external, b.op.external);
    move(a.op.sequence, b.op.sequence);
    move(a.op.forward_thread, b.op.forward_thread);
    move(a.op.flops, b.op.flops);
    for (size_t i = 0; i < b.op.call_stack.size(); ++i) {
      const uint32_t code = b.op.call_stack[i];
      a.op.call_stack.push(code == kNullU32 ? code : texts[code]);
    }
    move(a.python.id, b.python.id);
    move(a.python.parent, b.python.parent);
    move(a.runtime.external, b.runtime.external);
    move(a.runtime.correlation, b.runtime.correlation);
    move(a.device.external, b.device.external);
    move(a.device.correlation, b.device.correlation);
    for (int i = 0; i < 3; ++i) {
      move(a.kernel.grid[i], b.kernel.grid[i]);
      move(a.kernel.block[i], b.kernel.block[i]);
    }
    move(a.kernel.registers, b.kernel.registers);
    move(a.kernel.shared, b.kernel.shared);
    move(a.kernel.blocks_per_sm, b.kernel.blocks_per_sm);
    move(a.kernel.warps_per_sm, b.kernel.warps_per_sm);
    move(a.kernel.occupancy, b.kernel.occupancy);
    move(a.kernel.graph, b.kernel.graph);
    move(a.kernel.graph_node, b.kernel.graph_node);
    move(a.copy_size, b.copy_size);
    move(a.memory.bytes, b.memory.bytes);
    move(a.memory.address, b.memory.address);
    move(a.memory.device_type, b.memory.device_type);
    move(a.memory.device_id, b.memory.device_id);
    move(a.memory.allocated, b.memory.allocated);
    move(a.memory.reserved, b.memory.reserved);
    shift(b.args.row);
    recode(b.args.key, texts);
    for (size_t i = 0; i < b.args.value.size(); ++i) {
      if (b.args.type[i] == 2) b.args.value[i] = texts[size_t(b.args.value[i])];
    }
    move(a.args.row, b.args.row);
    move(a.args.key, b.args.key);
    move(a.args.type, b.args.type);
    move(a.args.value, b.args.value);
    recode(b.counters.track, lanes);
    recode(b.counters.name, names);
    recode(b.counters.key, texts);
    move(a.counters.track, b.counters.track);
    move(a.counters.at, b.counters.at);
    move(a.counters.name, b.counters.name);
    move(a.counters.key, b.counters.key);
    move(a.counters.value, b.counters.value);
    recode(b.labels.track, lanes);
    recode(b.labels.name, names);
    recode(b.labels.text, texts);
    move(a.labels.track, b.labels.track);
    move(a.labels.name, b.labels.name);
    move(a.labels.text, b.labels.text);
    recode(b.instants.name, names);
    move(a.instants.name, b.instants.name);
    move(a.instants.at, b.instants.at);
    recode(b.windows.name, names);
    move(a.windows.name, b.windows.name);
    move(a.windows.start, b.windows.start);
    move(a.windows.dur, b.windows.dur);
  };
  in_both(b.start.size() > 100000, spans, others);
  for (auto& member : b.header) a.header.push_back(std::move(member));
  for (int i = 0; i < kRepairCount; ++i) {
    if (b.repairs[i].count) a.repair(RepairCode(i), b.repairs[i].offset, b.repairs[i].count);
  }
  a.events += b.events;
  a.flows += b.flows;
  a.skipped_phase += b.skipped_phase;
  a.lost_bytes += b.lost_bytes;
  into.state_ = Scanner::State::kDone;
}

}  // namespace foretrace
