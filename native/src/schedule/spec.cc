#include "schedule/spec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "kf/error.h"

namespace kf {

namespace {

constexpr int kMaxDepth = 16;  // bounds the recursion through nested specs

bool is_name_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_name_letter);
}

std::string without_spaces(std::string_view text) {
  std::string kept;
  for (const char c : text) {
    if (c != ' ' && c != '\t' && c != '\n') kept.push_back(c);
  }
  return kept;
}

int parse_int(std::string_view text, const std::string& what) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw_usage(what + " must be a whole number, got \"" + std::string(text) + "\"");
  }
  return value;
}

Argument parse_argument(const std::string& text, const std::string& spec) {
  const auto equals = text.find('=');
  const auto bracket = text.find('(');
  Argument argument;
  // An "=" behind a bracket belongs to a nested spec, not to this argument.
  if (equals != std::string::npos && (bracket == std::string::npos || equals < bracket)) {
    argument.key = text.substr(0, equals);
    argument.value = text.substr(equals + 1);
    if (!is_name(argument.key)) {
      throw_usage("schedule \"" + spec + "\": \"" + argument.key +
                  "\" is not an argument name");
    }
  } else {
    argument.value = text;
  }
  if (argument.value.empty()) {
    throw_usage("schedule \"" + spec + "\": an argument is empty");
  }
  return argument;
}

}  // namespace

void throw_usage(const std::string& message) {
  throw Error(ErrorCode::usage, message);
}

void append(std::string& text, std::string_view part, std::string_view separator) {
  if (!text.empty()) text += separator;
  text += part;
}

std::string join(const std::vector<int>& values) {
  std::string text;
  for (const int value : values) append(text, std::to_string(value), ",");
  return text;
}

std::vector<std::string> split_top_level(std::string_view text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    if (c == '(' && ++depth > kMaxDepth) throw_usage("schedule text is nested too deeply");
    if (c == ')' && --depth < 0) break;
    if (c == ',' && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back().push_back(c);
    }
  }
  if (depth != 0) {
    throw_usage("\"" + std::string(text) + "\": parentheses do not match");
  }
  return parts;
}

Spec parse_spec(std::string_view raw) {
  const std::string text = without_spaces(raw);
  const auto open = text.find('(');
  Spec spec;
  spec.name = text.substr(0, open);
  if (!is_name(spec.name)) {
    throw_usage("schedule \"" + std::string(raw) +
                "\" must look like name or name(key=value,...), with a lower-case name");
  }
  if (open == std::string::npos) return spec;
  if (text.back() != ')') {
    throw_usage("schedule \"" + std::string(raw) + "\" must end with \")\"");
  }
  const std::string inner = text.substr(open + 1, text.size() - open - 2);
  for (const std::string& part : split_top_level(inner)) {
    Argument argument = parse_argument(part, text);
    const bool repeated =
        !argument.key.empty() &&
        std::any_of(spec.arguments.begin(), spec.arguments.end(),
                    [&](const Argument& other) { return other.key == argument.key; });
    if (repeated) {
      throw_usage("schedule \"" + text + "\": argument " + argument.key + " stands twice");
    }
    spec.arguments.push_back(std::move(argument));
  }
  return spec;
}

std::vector<int> parse_int_list(std::string_view text, const std::string& what) {
  if (text.size() >= 2 && text.front() == '(' && text.back() == ')') {
    text = text.substr(1, text.size() - 2);
  }
  std::vector<int> values;
  for (const std::string& part : split_top_level(text)) values.push_back(parse_int(part, what));
  return values;
}

bool Arguments::has(std::string_view key) const noexcept {
  return std::any_of(spec_.arguments.begin(), spec_.arguments.end(),
                     [&](const Argument& argument) { return argument.key == key; });
}

std::string Arguments::take(const std::string& key) {
  asked_.push_back(key);
  for (const Argument& argument : spec_.arguments) {
    if (argument.key == key) return argument.value;
  }
  return {};
}

int Arguments::integer(const std::string& key, int fallback, int least, int most) {
  const std::string text = take(key);
  if (text.empty()) return fallback;
  const int value = parse_int(text, spec_.name + "'s " + key);
  if (value < least || value > most) {
    throw_usage(spec_.name + "'s " + key + " must be in [" + std::to_string(least) + ", " +
                std::to_string(most) + "], got " + std::to_string(value));
  }
  return value;
}

double Arguments::positive(const std::string& key, double fallback) {
  const std::string text = take(key);
  if (text.empty()) return fallback;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end != text.c_str() + text.size() || !std::isfinite(value) || value <= 0) {
    throw_usage(spec_.name + "'s " + key + " must be a finite number > 0, got \"" + text +
                "\"");
  }
  return value;
}

std::string Arguments::text(const std::string& key, const std::string& fallback) {
  const std::string given = take(key);
  return given.empty() ? fallback : given;
}

std::vector<std::string> Arguments::unnamed() {
  asked_.emplace_back();
  std::vector<std::string> values;
  for (const Argument& argument : spec_.arguments) {
    if (argument.key.empty()) values.push_back(argument.value);
  }
  return values;
}

void Arguments::finish() const {
  for (const Argument& argument : spec_.arguments) {
    if (std::find(asked_.begin(), asked_.end(), argument.key) != asked_.end()) continue;
    std::string known;
    for (const std::string& key : asked_) append(known, key);
    throw_usage("schedule " + spec_.name + " has no argument \"" +
                (argument.key.empty() ? argument.value : argument.key) + "\"; it takes " +
                (known.empty() ? "none" : known));
  }
}

}  // namespace kf
