// A schedule written out: the text form of any schedule, so that one a user made can be agreed
// on, logged and built by every rank like those that have a generator.
//
// custom(collective=all_reduce,world_size=2,chunks=2,((0+1:0,1+0:1),(1>0:0,0>1:1)))
// Each unnamed argument is a channel, a list of rounds, each a list of transfers:
// source, "+" (reduce) or ">" (replace), destination, ":", first chunk, "*" and their number if
// > 1.
#include <charconv>
#include <limits>

#include "kf/generators.h"
#include "kf/validate.h"
#include "schedule/generator.h"

namespace kf {

namespace {

std::string_view inside(std::string_view text, const char* what) {
  if (text.size() < 2 || text.front() != '(' || text.back() != ')') {
    throw_usage(std::string("custom: ") + what + " must stand in parentheses, got \"" +
                std::string(text) + "\"");
  }
  return text.substr(1, text.size() - 2);
}

// Reads a number and moves behind it.
int number(std::string_view& text, std::string_view whole) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) {
    throw_usage("custom: a transfer looks like 0+1:4*2, got \"" + std::string(whole) + "\"");
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

char symbol(std::string_view& text) {
  if (text.empty()) return '\0';
  const char found = text.front();
  text.remove_prefix(1);
  return found;
}

Transfer parse_transfer(std::string_view whole) {
  std::string_view text = whole;
  Transfer transfer{};
  transfer.src = number(text, whole);
  const char combine = symbol(text);
  transfer.dst = number(text, whole);
  const char colon = symbol(text);
  transfer.chunk_begin = number(text, whole);
  transfer.chunk_count = 1;
  if (!text.empty() && symbol(text) == '*') transfer.chunk_count = number(text, whole);
  if ((combine != '+' && combine != '>') || colon != ':' || !text.empty()) {
    throw_usage("custom: a transfer looks like 0+1:4*2, got \"" + std::string(whole) + "\"");
  }
  transfer.combine = combine == '+' ? Combine::reduce : Combine::replace;
  return transfer;
}

Channel parse_channel(std::string_view text) {
  Channel channel;
  for (const std::string& round_text : split_top_level(inside(text, "a channel"))) {
    Round round;
    for (const std::string& transfer : split_top_level(inside(round_text, "a round"))) {
      round.push_back(parse_transfer(transfer));
    }
    channel.rounds.push_back(std::move(round));
  }
  return channel;
}

std::string bracketed(const std::string& text) {
  std::string whole(1, '(');
  whole += text;
  whole += ')';
  return whole;
}

std::string write(const Transfer& t) {
  std::string text = std::to_string(t.src);
  text += t.combine == Combine::reduce ? '+' : '>';
  text += std::to_string(t.dst);
  text += ':';
  text += std::to_string(t.chunk_begin);
  if (t.chunk_count != 1) {
    text += '*';
    text += std::to_string(t.chunk_count);
  }
  return text;
}

}  // namespace

std::string custom_spec(const Schedule& schedule) {
  std::string text = std::string("custom(collective=") + to_string(schedule.collective) +
                     ",world_size=" + std::to_string(schedule.world_size);
  if (uses_root(schedule.collective)) text += ",root=" + std::to_string(schedule.root);
  text += ",chunks=" + std::to_string(schedule.chunk_count);
  for (const Channel& channel : schedule.channels) {
    std::string rounds;
    for (const Round& round : channel.rounds) {
      std::string transfers;
      for (const Transfer& transfer : round) append(transfers, write(transfer), ",");
      if (!transfers.empty()) append(rounds, bracketed(transfers), ",");
    }
    if (!rounds.empty()) append(text, bracketed(rounds), ",");
  }
  text += ')';
  return text;
}

Collective collective_of_custom(Arguments& arguments, Collective fallback) {
  return collective_from_string(arguments.text("collective", to_string(fallback)));
}

Schedule build_custom(Arguments& arguments, const Request& request) {
  const Collective made_for = collective_of_custom(arguments, request.collective);
  const int world_size = arguments.integer("world_size", request.world_size, 1, kMaxWorldSize);
  const int root = arguments.integer("root", 0, 0, world_size - 1);
  const int chunks = arguments.integer("chunks", 1, 1, std::numeric_limits<int>::max());
  if (made_for != request.collective || world_size != request.world_size) {
    throw_usage(std::string("this custom schedule is for ") + to_string(made_for) + " over " +
                std::to_string(world_size) + " ranks, wanted " + to_string(request.collective) +
                " over " + std::to_string(request.world_size));
  }
  Schedule schedule = empty_schedule("", request, chunks);
  if (uses_root(made_for) && root != request.root) {
    throw_usage("this custom schedule has root " + std::to_string(root) + ", wanted " +
                std::to_string(request.root));
  }
  for (const std::string& channel : arguments.unnamed()) {
    schedule.channels.push_back(parse_channel(channel));
  }
  validate(schedule);
  schedule.name = custom_spec(schedule);
  return schedule;
}

}  // namespace kf
