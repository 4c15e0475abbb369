// Starting operations: what a call means, whether it may be made, which schedule runs it.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>

#include "kf/error.h"
#include "kf/generators.h"
#include "session/checks.h"
#include "session/fingerprint.h"
#include "session/impl.h"
#include "session/select.h"

namespace kf {

namespace {

constexpr std::size_t kMostAhead = 256;  // small messages a receiver may have to keep for us

// Every block goes from its source to its destination in one step, so ranks need no memory for
// the blocks of others.
bool is_direct(const Schedule& schedule) {
  for (const Channel& channel : schedule.channels) {
    for (const Round& round : channel.rounds) {
      for (const Transfer& t : round) {
        if (t.chunk_count != 1 || t.chunk_begin / schedule.world_size != t.src ||
            t.chunk_begin % schedule.world_size != t.dst) {
          return false;
        }
      }
    }
  }
  return true;
}

std::string listed(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return "[" + text + "]";
}

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::usage, text);
}

void check_blocks(const Call& call, const Layout& layout, int owners) {
  const auto fits = [&](std::int64_t block) { return block >= 0; };
  const std::int64_t total =
      std::accumulate(call.blocks.begin(), call.blocks.end(), std::int64_t{0});
  if (static_cast<int>(call.blocks.size()) != owners || total != layout.units() ||
      !std::all_of(call.blocks.begin(), call.blocks.end(), fits)) {
    refuse(std::string(to_string(call.collective)) + " takes " + std::to_string(owners) +
           " blocks, each >= 0, that together have " + std::to_string(layout.units()) +
           " elements; got " + std::to_string(call.blocks.size()) + " with " +
           std::to_string(total));
  }
}

// What the operation is, in the words of its caller; used as its fingerprint too.
Meaning meaning_of(const Call& call, std::string_view schedule, const SessionOptions& options) {
  Meaning meaning{
      call.collective,      call.root, call.name, schedule, call.pieces, options.eager_bytes,
      options.segment_bytes};
  meaning.blocks = call.blocks;
  meaning.site = call.site;
  if (call.group != nullptr) meaning.members = call.group->members;
  return meaning;
}

}  // namespace

Call exchange(const void* input, void* output, DType dtype, std::vector<std::int64_t> counts,
              int rank, int world_size) {
  const auto n = static_cast<std::size_t>(world_size);
  const auto self = static_cast<std::size_t>(rank);
  const auto negative = [](std::int64_t count) { return count < 0; };
  if (counts.size() != n * n || std::any_of(counts.begin(), counts.end(), negative)) {
    refuse("all_to_all takes " + std::to_string(n * n) + " counts, each >= 0, got " +
           std::to_string(counts.size()));
  }
  Call call;
  call.collective = Collective::all_to_all;
  call.sparse = true;
  const std::int64_t size = element_bytes(dtype);
  // the executor only reads the blocks this rank sends
  auto* from = static_cast<std::byte*>(const_cast<void*>(input));
  auto* to = static_cast<std::byte*>(output);
  for (std::size_t source = 0; source < n; ++source) {
    for (std::size_t destination = 0; destination < n; ++destination) {
      const std::int64_t count = counts[source * n + destination];
      std::byte* data = nullptr;
      if (source == self && destination == self && count > 0) {
        std::memcpy(to, from, static_cast<std::size_t>(count * size));
      }
      if (source == self) {
        data = from;
        from += count * size;
      }
      if (destination == self) {
        data = to;
        to += count * size;
      }
      call.pieces.push_back({data, count, dtype, ReduceOp::sum});
    }
  }
  call.blocks = std::move(counts);
  return call;
}

std::shared_ptr<const Group> Session::Impl::group(std::vector<int> members) {
  require_same_process();
  const int world_size = view_.world_size();
  std::vector<int> sorted = members;
  std::sort(sorted.begin(), sorted.end());
  const bool distinct = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  if (sorted.empty() || !distinct || sorted.front() < 0 || sorted.back() >= world_size) {
    refuse("a group has one or more different ranks in [0, " + std::to_string(world_size) +
           "), got " + listed(members));
  }
  const auto me = std::find(members.begin(), members.end(), rank_);
  if (me == members.end()) {
    refuse("rank " + std::to_string(rank_) + " is not in the group " + listed(members) +
           "; only its members make a group");
  }
  const std::lock_guard lock(mutex_);
  auto made = std::make_shared<Group>();
  made->rank = static_cast<int>(me - members.begin());
  const std::uint64_t instance = groups_made_[members]++;
  made->scope = hash_name("\1group " + listed(members) + " " + std::to_string(instance));
  made->members = std::move(members);
  return made;
}

int Session::Impl::size_of(const Call& call) const noexcept {
  return call.group == nullptr ? view_.world_size()
                               : static_cast<int>(call.group->members.size());
}

void Session::Impl::check(const Call& call) const {
  if (call.norms != nullptr && call.collective != Collective::all_reduce) {
    refuse(std::string("norms are summed by all_reduce, not by ") + to_string(call.collective));
  }
  const int size = size_of(call);
  if (has_root(call.collective) && (call.root < 0 || call.root >= size)) {
    refuse("root must be in [0, " + std::to_string(size) + "), got " +
           std::to_string(call.root));
  }
  for (const Piece& piece : call.pieces) {
    if (reduces(call.collective)) require_reducible(piece.dtype, piece.op);
  }
  if (!call.sparse) require_memory(call.pieces);
  require_disjoint(call.pieces);
  const int owners = owned_blocks(call.collective, size);
  if (owners == 0) return;
  const Layout layout(call.pieces);
  if (!call.blocks.empty()) {
    check_blocks(call, layout, owners);
  } else if (layout.units() % owners != 0) {
    refuse(std::string(to_string(call.collective)) +
           " needs a number of elements that is a multiple of " + std::to_string(owners) +
           ", got " + std::to_string(layout.units()));
  }
}

std::string Session::Impl::schedule_for(const Call& call) const {
  std::int64_t bytes = 0;
  for (const Piece& piece : call.pieces) bytes += piece.count * element_bytes(piece.dtype);
  return select_schedule(options_.schedule, call.collective, bytes, size_of(call),
                         call.group == nullptr ? std::span<const int>{} : call.group->members);
}

std::shared_ptr<const Plan> Session::Impl::plan_for(const Call& call, const std::string& spec) {
  const int counted_root = has_root(call.collective) ? call.root : 0;
  const std::vector<int> members =
      call.group == nullptr ? std::vector<int>() : call.group->members;
  auto& plan = plans_[{spec, call.collective, counted_root, members}];
  if (plan == nullptr) {
    const int rank = call.group == nullptr ? rank_ : call.group->rank;
    plan = make_plan(build_schedule(spec, call.collective, size_of(call), counted_root), rank,
                     members);
  }
  if (call.sparse && spec != "pairwise" && !is_direct(plan->schedule)) {
    return plan_for(call, "pairwise");
  }
  return plan;
}

Session::Handle Session::Impl::start(Call call) {
  require_same_process();
  check(call);
  Lock lock(mutex_);
  throw_if_dead(lock);
  OperationSpec spec;
  spec.plan = plan_for(call, schedule_for(call));
  spec.blocks = call.blocks;
  spec.restorable = !call.sparse;
  const Meaning meaning = meaning_of(call, spec.plan->schedule.name, options_);
  const std::uint64_t outer = call.group == nullptr ? 0 : call.group->scope;
  if (call.name.empty()) {
    spec.key.scope = outer;
  } else {
    spec.key.scope = outer == 0 ? hash_name(call.name)
                                : hash_name("\1in " + std::to_string(outer) + " " + call.name);
  }
  spec.fingerprint = fingerprint(meaning);
  return launch(lock, std::move(call), std::move(spec), false);
}

OperationSpec Session::Impl::message_spec(int peer, bool send, std::int64_t tag, Call& call) {
  const int size = size_of(call);
  const int self = call.group == nullptr ? rank_ : call.group->rank;
  if (peer < 0 || peer >= size || peer == self) {
    refuse("peer must be another rank in [0, " + std::to_string(size) + "), got " +
           std::to_string(peer) + " on rank " + std::to_string(self));
  }
  const int other =
      call.group == nullptr ? peer : call.group->members[static_cast<std::size_t>(peer)];
  const std::uint64_t outer = call.group == nullptr ? 0 : call.group->scope;
  std::vector<int> members = send ? std::vector{rank_, other} : std::vector{other, rank_};
  OperationSpec spec;
  spec.key.scope =
      hash_name((tag == kModelTag ? "\1model " : "\1message ") + std::to_string(outer) + " " +
                listed(members) + " " + std::to_string(tag));
  call.collective = Collective::broadcast;
  call.root = 0;
  call.group = std::make_shared<Group>(Group{std::move(members), send ? 0 : 1, 0});
  check(call);
  spec.plan = plan_for(call, "star");
  spec.restorable = !send;
  Meaning meaning = meaning_of(call, "star", options_);
  meaning.tag = &tag;
  spec.fingerprint = fingerprint(meaning);
  spec.describe = [call, options = options_, tag] {
    Meaning words = meaning_of(call, "star", options);
    words.tag = &tag;
    return in_words(words);
  };
  return spec;
}

Session::Handle Session::Impl::message(int peer, bool send, std::int64_t tag, Call call) {
  require_same_process();
  if (tag == kModelTag) refuse("tag must be larger than the smallest number of 64 bits");
  Lock lock(mutex_);
  throw_if_dead(lock);
  OperationSpec spec = message_spec(peer, send, tag, call);
  const int other = call.group->members[send ? 1 : 0];
  const bool small = Layout(call.pieces).bytes() <= options_.eager_bytes;
  const bool buffered = send && small && may_run_ahead(other);
  const Handle handle = launch(lock, std::move(call), std::move(spec), buffered);
  if (buffered && !handle->operation->done()) ahead_[other].push_back(handle->operation);
  return handle;
}

// Whether a small message may be done before its receiver has asked for it.
bool Session::Impl::may_run_ahead(int peer) {
  auto& ahead = ahead_[peer];
  std::erase_if(ahead, [](const auto& operation) { return operation->done(); });
  return ahead.size() < kMostAhead;
}

Session::Handle Session::Impl::launch(Lock& lock, Call call, OperationSpec spec,
                                      bool buffered) {
  const bool background = call.background;
  const int rank = call.group == nullptr ? rank_ : call.group->rank;
  std::vector<MemorySpan> spans;
  append_spans(call.pieces, call.collective, rank == call.root, call.sparse ? rank : -1,
               size_of(call), spans);
  claim(spans, [&] {
    return spec.describe ? spec.describe()
                         : in_words(meaning_of(call, spec.plan->schedule.name, options_));
  });
  Handle pending = begin(std::move(call), std::move(spec), buffered);
  pending->spans = std::move(spans);
  claims_.add(pending);
  throw_if_dead(lock);
  if (background && !pending->complete()) run_in_background(lock, pending);
  return pending;
}

// Leaves a session that died of it to the caller: it may be called from within the transport.
Session::Handle Session::Impl::begin(Call call, OperationSpec spec, bool buffered) {
  auto pending = std::make_shared<Pending>();
  // not to be kept with the words: those live as long as the meaning is remembered
  std::shared_ptr<NormSums> norms = std::move(call.norms);
  pending->buffered = buffered;
  pending->deadline = call.deadline;
  pending->started = Clock::now();
  spec.eager_bytes = options_.eager_bytes;
  spec.cell_bytes = options_.segment_bytes;
  const bool widen = reduces(call.collective) && size_of(call) > 1;
  for (const Piece& piece : call.pieces) {
    spec.pieces.push_back(widen && Pending::needs_widening(piece) ? pending->widen_piece(piece)
                                                                  : piece);
  }
  if (!spec.describe) {
    // the words are seldom needed; what they are made of is kept until the operation is over
    spec.describe = [call = std::move(call), plan = spec.plan, options = options_] {
      return in_words(meaning_of(call, plan->schedule.name, options));
    };
  }
  pending->operation = executor_.start(std::move(spec), std::move(norms));
  return pending;
}

}  // namespace kf
