// Events of a shape that came before. Most events of a recording are a copy of an earlier one but for some numbers: times,
// ids, sizes. A template is the text of such an event with the numbers cut out, and what the event became: one that
// follows it is compared piece by piece, its numbers are read where they stand, and its row is written at once.
// A template is made of an event that the scanner has read and written in full, so it holds nothing that is not known
// to be sound; whatever differs from it in anything else goes that way, too.
#pragma once

#include "event.hpp"

namespace foretrace {

// Whether two texts are the same. May not look behind them.
inline bool same_text(const char* a, const char* b, size_t length) {
  if (length >= 32) return std::memcmp(a, b, length) == 0;
  if (length >= 8) {
    uint64_t differs = load8(a + length - 8) ^ load8(b + length - 8);
    for (size_t i = 0; i + 8 < length; i += 8) differs |= load8(a + i) ^ load8(b + i);
    return !differs;
  }
  for (size_t i = 0; i < length; ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

// Behind the first 1 to 16 digits at `p`, and their value; null where there are none.
inline const char* read_digits(const char* p, uint64_t& value) {
  static constexpr uint64_t kPowers[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
  const uint64_t word = load8(p);
  const unsigned count = digits_in(word);
  if (!count) return nullptr;
  value = value_of_digits(word, count);
  if (count < 8) return p + count;
  const uint64_t rest = load8(p + 8);
  const unsigned more = digits_in(rest);
  if (!more) return p + 8;
  value = value * kPowers[more] + value_of_digits(rest, more);
  return p + 8 + more;
}

constexpr ptrdiff_t kLongestNumber = 24;
constexpr uint64_t kLargestTime = (uint64_t(1) << 61) / 1000 - 1;  // in microseconds: as to_nanoseconds has it

// Reads the number of a piece; null where it is written in another form than that of the template.
inline const char* Scanner::read_number(const char* p, Form form, int64_t& result) {
  uint64_t value;
  bool negative = false;
  switch (form) {
    case Form::kSigned:
      negative = *p == '-';
      p += negative;
      [[fallthrough]];
    case Form::kUnsigned:
      p = read_digits(p, value);
      if (p) result = negative ? -int64_t(value) : int64_t(value);
      return p;
    case Form::kTime: {  // microseconds, with up to three digits behind a point
      p = read_digits(p, value);
      if (!p || value > kLargestTime) return nullptr;
      result = int64_t(value * 1000);
      if (*p != '.') return p;
      static constexpr uint64_t kScale[] = {0, 100, 10, 1};
      const uint64_t word = load8(p + 1);
      const unsigned count = digits_in(word);
      if (count < 1 || count > 3) return nullptr;
      result += int64_t(value_of_digits(word, count) * kScale[count]);
      return p + 1 + count;
    }
    case Form::kAny: {
      const char* const begin = p;
      p += *p == '-';
      if (!digits_in(load8(p))) return nullptr;
      p = skip_digits(p);
      if (*p == '.') p = skip_digits(p + 1);
      return p - begin < kLongestNumber ? p : nullptr;  // the next piece must lie in the buffer
    }
    case Form::kEnd: break;
  }
  return nullptr;
}

// Behind the event at `q`, if it is one of this shape and another follows; its numbers are then those of the template.
inline const char* Scanner::match_template(Template& shape, const char* q) {
  if (size_t(end() - q) <= shape.longest) return nullptr;
  const char* text = shape.text.data();
  for (const Piece& piece : shape.pieces) {
    if (!same_text(q, text, piece.length)) return nullptr;
    q += piece.length;
    text += piece.length;
    if (piece.form == Form::kEnd) break;
    q = read_number(q, piece.form, shape.number[piece.target]);
    if (!q) return nullptr;
  }
  // What the scanner would note, it must see.
  if (shape.number[kDurationNumber] > kLongestNs) return nullptr;
  return q - 1;  // the last piece holds the brace of the next event
}

// Where it is kept which shape came after the last ones: after sixteen, six, two and one of them.
inline uint16_t* const* Scanner::places_after() {
  place_after_[0] = &shapes_after_[place_of(shapes_before_, 2, kFarBits)];
  place_after_[1] = &shapes_after_[kFarShapes + place_of(shapes_before_ & 0xFFFFFF, 3, kGuessBits)];
  place_after_[2] = &shapes_after_[kFarShapes + place_of(last_shapes_, 4, kGuessBits)];
  place_after_[3] = &shapes_after_[kFarShapes + place_of(last_shapes_ & 0xFFFF, 5, kGuessBits)];
  return place_after_;
}

inline void Scanner::follow_shape(uint32_t number) {
  shapes_before_ = (shapes_before_ << 4) + ((number + 1) * 0x9E3779B1u >> 16);
  last_shapes_ = last_shapes_ << 16 | (number & 0xFFFF);
}

// Reads events of known shapes; `p` is left at the brace of the first that is none.
inline void Scanner::known_events(const char*& p) {
  if (!kLittleEndian) return;
  for (;;) {
    uint16_t& likely = shapes_after_[place_of(shapes_before_, 2, kFarBits)];
    uint32_t number = likely;
    const char* q = number < templates_.size() ? match_template(templates_[number], p) : nullptr;
    if (!q) {
      q = less_likely(p, number);
      if (!q) return;
    }
    follow_shape(number);
    if (template_credit_ < kTemplateCredit) ++template_credit_;
    commit_known(templates_[number]);
    p = q;
  }
}

inline const char* Scanner::less_likely(const char* p, uint32_t& number) {
  uint16_t* const* const places = places_after();
  uint32_t tried = number;
  for (int i = 1; i < kShapeGuesses; ++i) {
    number = *places[i];
    if (number == tried || number >= templates_.size()) continue;
    if (const char* q = match_template(templates_[number], p)) {
      for (int j = 0; j < kShapeGuesses; ++j) *places[j] = uint16_t(number);
      return q;
    }
    tried = number;
  }
  return nullptr;
}

inline void Scanner::commit_known(const Template& shape) {
  const int64_t* const number = shape.number;
  ++raw.events;
  if (shape.flow) {
    ++raw.flows;
    return;
  }
  const uint32_t row = uint32_t(raw.start.size());
  raw.start.push(number[kStartNumber]);
  raw.lane.push(shape.lane);
  raw.kind.push(shape.kind);
  raw.name.push(shape.name);
  if (shape.kind == kMemory) {
    raw.dur.push(kNullI64);
    raw.memory.bytes.push(number[kMemoryBytes]);
    raw.memory.address.push(uint64_t(number[kAddr]));
    raw.memory.device_type.push(number[kDeviceType]);
    raw.memory.device_id.push(number[kDeviceId]);
    raw.memory.allocated.push(number[kAllocated]);
    raw.memory.reserved.push(number[kReserved]);
    return;
  }
  raw.dur.push(number[kDurationNumber]);
  names_before_ = names_before_ << 8 | (shape.name * 0x9E3779B1u >> 24);
  for (const GeneralArg& each : shape.args) {
    raw.args.row.push(row);
    raw.args.key.push(each.key);
    raw.args.type.push(each.type);
    raw.args.value.push(each.number ? number[each.number] : each.value);
  }
  switch (shape.kind) {
    case kOp:
      raw.op.shapes.push(shape.text_code[0]);
      raw.op.dtypes.push(shape.text_code[1]);
      raw.op.strides.push(shape.text_code[2]);
      raw.op.inputs.push(shape.text_code[3]);
      raw.op.call_stack.push(shape.text_code[4]);
      raw.op.external.push(uint64_t(number[kExternal]));
      raw.op.sequence.push(number[kSequence]);
      raw.op.forward_thread.push(int32_t(number[kForwardThread]));
      raw.op.flops.push(number[kFlops]);
      break;
    case kPython:
      raw.python.id.push(number[kPythonId]);
      raw.python.parent.push(number[kPythonParent]);
      break;
    case kRuntime:
      raw.runtime.external.push(uint64_t(number[kExternal]));
      raw.runtime.correlation.push(uint64_t(number[kCorrelation]));
      break;
    case kKernel:
      for (int i = 0; i < 3; ++i) {
        raw.kernel.grid[i].push(shape.grid[i]);
        raw.kernel.block[i].push(shape.block[i]);
      }
      raw.kernel.registers.push(int32_t(number[kRegisters]));
      raw.kernel.shared.push(number[kShared]);
      raw.kernel.blocks_per_sm.push(shape.real[0]);
      raw.kernel.warps_per_sm.push(shape.real[1]);
      raw.kernel.occupancy.push(shape.real[2]);
      raw.kernel.graph.push(number[kGraph]);
      raw.kernel.graph_node.push(number[kGraphNode]);
      break;
    case kCopy: case kSet:
      raw.copy_size.push(number[kBytes]);
      break;
    default:
      break;
  }
  if (on_device(shape.kind)) {
    raw.device.external.push(uint64_t(number[kExternal]));
    raw.device.correlation.push(uint64_t(number[kCorrelation]));
  }
}

// What the last row became, which a template's numbers replace in part.
inline void Scanner::keep_last_row(Template& shape) const {
  int64_t* const number = shape.number;
  shape.kind = raw.kind.back();
  shape.lane = raw.lane.back();
  shape.name = raw.name.back();
  switch (shape.kind) {
    case kOp: {
      const auto& op = raw.op;
      const uint32_t codes[] = {op.shapes.back(), op.dtypes.back(), op.strides.back(), op.inputs.back(), op.call_stack.back()};
      std::copy(std::begin(codes), std::end(codes), shape.text_code);
      number[kExternal] = int64_t(op.external.back());
      number[kSequence] = op.sequence.back();
      number[kForwardThread] = op.forward_thread.back();
      number[kFlops] = op.flops.back();
      break;
    }
    case kPython:
      number[kPythonId] = raw.python.id.back();
      number[kPythonParent] = raw.python.parent.back();
      break;
    case kRuntime:
      number[kExternal] = int64_t(raw.runtime.external.back());
      number[kCorrelation] = int64_t(raw.runtime.correlation.back());
      break;
    case kKernel: {
      const auto& kernel = raw.kernel;
      for (int i = 0; i < 3; ++i) {
        shape.grid[i] = kernel.grid[i].back();
        shape.block[i] = kernel.block[i].back();
      }
      number[kRegisters] = kernel.registers.back();
      number[kShared] = kernel.shared.back();
      shape.real[0] = kernel.blocks_per_sm.back();
      shape.real[1] = kernel.warps_per_sm.back();
      shape.real[2] = kernel.occupancy.back();
      number[kGraph] = kernel.graph.back();
      number[kGraphNode] = kernel.graph_node.back();
      break;
    }
    case kCopy: case kSet:
      number[kBytes] = raw.copy_size.back();
      break;
    case kMemory: {
      const auto& memory = raw.memory;
      number[kMemoryBytes] = memory.bytes.back();
      number[kAddr] = int64_t(memory.address.back());
      number[kDeviceType] = memory.device_type.back();
      number[kDeviceId] = memory.device_id.back();
      number[kAllocated] = memory.allocated.back();
      number[kReserved] = memory.reserved.back();
      break;
    }
    default:
      break;
  }
  if (on_device(shape.kind)) {
    number[kExternal] = int64_t(raw.device.external.back());
    number[kCorrelation] = int64_t(raw.device.correlation.back());
  }
}

// The form of an integer that a template may have another of, or kEnd.
inline Scanner::Form Scanner::integer_form(const Token& token, bool may_be_negative) {
  if (token.type != Type::kInteger) return Form::kEnd;
  const bool negative = token.text[0] == '-';
  if (token.length - negative > 16 || (negative && !may_be_negative)) return Form::kEnd;
  return may_be_negative ? Form::kSigned : Form::kUnsigned;
}

// How an argument of this key may differ from one event to the next, and where the number goes.
inline Scanner::Form Scanner::form_of(uint32_t key, const Token& token, const Template& shape, uint8_t& target) {
  const bool number = token.type == Type::kInteger || token.type == Type::kNumber;
  target = kIgnoredNumber;
  if (key == kDropped || shape.flow) return number && token.length > 1 ? Form::kAny : Form::kEnd;  // a digit is mostly the same
  if (shape.kind == kMemory) {
    target = uint8_t(key);
    if (key == kMemoryBytes || key == kAllocated || key == kReserved) return integer_form(token, true);
    return key == kAddr ? integer_form(token, false) : Form::kEnd;
  }
  const uint64_t columns = shape.kind == kOp                               ? bit(kExternal)
                           : shape.kind == kRuntime || on_device(shape.kind) ? kCommonArgs
                                                                            : uint64_t(0);
  const uint32_t what = meaning(key);
  if (what < kArgCount && (kKnownArgs[shape.kind] & bit(what))) {
    target = uint8_t(what);
    if (what == kExternal || what == kCorrelation) {
      if (columns & bit(what)) return integer_form(token, false);
      target = kIgnoredNumber;
      return number ? Form::kAny : Form::kEnd;
    }
    const bool differs = what == kSequence || what == kPythonId || what == kPythonParent || what == kBytes ||
                         what == kGraph || what == kGraphNode;
    return differs ? integer_form(token, true) : Form::kEnd;
  }
  return Form::kEnd;  // of the general table: see learn_event
}

// Makes a template of the event that was just written, from its brace to that of the next one.
inline void Scanner::learn_event(const char* begin, const char* next, const Written& before) {
  if (!kLittleEndian || size_t(next - begin) > kLongestTemplate || template_credit_ < kTemplateCost) return;
  const bool flow = raw.flows == before.flows + 1;
  const bool one = raw.start.size() == before.rows + 1;
  uint32_t number = kNullU32;
  if ((flow || one) && raw.gpu_annotations.size() == before.gpu_annotations) {
    template_credit_ -= kTemplateCost;
    number = number_of_shape(begin, next, flow, before);
  }
  if (number != kNullU32) {
    uint16_t* const* const places = places_after();
    for (int i = 0; i < kShapeGuesses; ++i) *places[i] = uint16_t(number);
  }
  follow_shape(number);
}

inline uint32_t Scanner::number_of_shape(const char* begin, const char* next, bool flow, const Written& before) {
  auto& namesakes = templates_of_[flow ? kNullU64 : raw.name.back()];
  for (const uint16_t each : namesakes.number) {
    if (each < templates_.size() && match_template(templates_[each], begin) == next) return each;
  }
  Template& shape = new_template_;
  shape.text.clear();
  shape.pieces.clear();
  shape.args.clear();
  shape.flow = flow;
  std::fill(std::begin(shape.number), std::end(shape.number), kNullI64);
  if (!flow) keep_last_row(shape);
  if (!cut_numbers(begin, next, before)) return kNullU32;
  std::string key = shape.text;
  for (const Piece& piece : shape.pieces) key += {char(piece.form), char(piece.target), char(piece.length), char(piece.length >> 8)};
  const auto known = template_numbers_.find(key);
  uint32_t number;
  if (known != template_numbers_.end()) {
    number = known->second;
  } else {
    if (templates_.size() == kMostTemplates) {  // others may come: begin anew
      templates_.clear();
      template_numbers_.clear();
    }
    number = uint32_t(templates_.size());
    templates_.push_back(shape);
    template_numbers_.emplace(std::move(key), number);
  }
  namesakes.number[namesakes.next++ % kNamesakes] = uint16_t(number);
  return number;
}

// Splits the text of an event at the numbers that may differ in the next one; false if it is no plain object.
inline bool Scanner::cut_numbers(const char* begin, const char* next, const Written& before) {
  Template& shape = new_template_;
  const char* q = begin + 1;
  const char* from = begin;  // of the piece in the making
  uint32_t seen = 0;
  size_t general = before.args;
  uint8_t extra = 0;
  bool in_args = false, done = false;
  std::vector<uint32_t> keys;
  shape.longest = 0;
  const auto cut = [&](const Token& token, Form form, uint8_t target) {
    shape.pieces.push_back(Piece{uint32_t(token.text - from), form, target});
    shape.text.append(from, size_t(token.text - from));
    from = token.text + token.length;
  };
  while (!done) {
    uint8_t notes = 0;
    Token key{}, value{};
    q = skip_space(q, next);
    if (q >= next || *q != '"' || scan_string(q, next, notes, &key) != Status::kOk) return false;
    q = skip_space(q, next);
    if (*q != ':') return false;
    q = skip_space(q + 1, next);
    const uint32_t field = in_args ? uint32_t(kOtherKey) : event_key(key);
    if (field != kOtherKey && (seen & (1u << field))) return false;
    seen |= 1u << field;
    if (field == kArgs) {
      if (*q != '{') return false;
      in_args = true;
      q = skip_space(q + 1, next);
    } else {
      if (q >= next || scan_value(q, next, notes, &value) != Status::kOk || notes) return false;
      const bool number = value.type == Type::kInteger || value.type == Type::kNumber;
      Form form = Form::kEnd;
      uint8_t target = kIgnoredNumber;
      if (in_args) {
        const uint32_t what = arg_key(key);
        if (what != kDropped && std::find(keys.begin(), keys.end(), meaning(what)) != keys.end()) return false;
        keys.push_back(meaning(what));
        form = form_of(what, value, shape, target);
        const bool known = meaning(what) < kArgCount && shape.kind != kMemory && (kKnownArgs[shape.kind] & bit(meaning(what)));
        if (!shape.flow && shape.kind != kMemory && what != kDropped && !known) {
          if (general >= raw.args.row.size() || raw.args.key[general] != find_key(what)) return false;
          GeneralArg arg{raw.args.key[general], raw.args.type[general], 0, raw.args.value[general]};
          ++general;
          form = extra < kMostExtras && arg.type == 0 ? integer_form(value, true) : Form::kEnd;
          if (form != Form::kEnd) arg.number = target = uint8_t(kFirstExtra + extra++);
          shape.args.push_back(arg);
        }
      } else if (shape.flow) {
        form = number && field != kPid && field != kTid ? Form::kAny : Form::kEnd;
      } else if (field == kTs || (field == kDur && shape.kind != kMemory)) {
        target = uint8_t(field == kTs ? kStartNumber : kDurationNumber);
        int64_t ignored;
        form = Form::kTime;
        if (!number || read_number(value.text, form, ignored) != value.text + value.length) return false;
      } else if (field == kOtherKey) {
        form = number ? Form::kAny : Form::kEnd;
      }
      if (form != Form::kEnd) cut(value, form, target);
      if (form == Form::kAny && value.type == Type::kNumber && skip_digits(value.text + (value.text[0] == '-')) == value.text) {
        return false;
      }
      q = skip_space(q, next);
    }
    // What stands behind a value, or behind the brace of the arguments.
    bool comma = false;
    while (q < next && !comma && !done) {
      if (*q == '}') {
        done = !in_args;
        in_args = false;
        q = skip_space(q + 1, next);
      } else if (*q == ',') {
        comma = true;
        ++q;
      } else if (*q == '"' && field == kArgs) {
        break;  // its first argument
      } else {
        return false;
      }
    }
    if (q >= next && !done) return false;
  }
  if (q >= next || *q != ',' || skip_space(q + 1, next) != next) return false;
  if (!shape.flow && (!(seen & (1u << kTs)) || (shape.kind != kMemory && !(seen & (1u << kDur))))) return false;
  if (general != raw.args.row.size()) return false;
  shape.pieces.push_back(Piece{uint32_t(next + 1 - from), Form::kEnd, 0});
  shape.text.append(from, size_t(next + 1 - from));
  shape.longest = shape.text.size() + size_t(kLongestNumber) * shape.pieces.size();
  return true;
}

}  // namespace foretrace
