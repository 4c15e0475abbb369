// Running an operation again: what it means was checked, planned and cut the first time.
#include <algorithm>
#include <utility>

#include "session/checks.h"
#include "session/claims.h"
#include "session/impl.h"

namespace kf {

namespace {

constexpr std::size_t kMostSpares = 4;  // operations kept to be restarted

}  // namespace

// What is the same on every repetition was checked and planned the first time.
Session::Handle Session::Impl::repeat(Lock& lock, const std::shared_ptr<const Recipe>& recipe,
                                      const std::vector<Piece>& pieces,
                                      std::shared_ptr<NormSums> norms) {
  Handle pending;
  const auto fits = [&](const Handle& spare) { return spare->recipe == recipe; };
  const auto spare = std::find_if(spare_.begin(), spare_.end(), fits);
  if (spare != spare_.end()) {
    pending = std::move(*spare);
    spare_.erase(spare);
    pending->announced = {};
  } else {
    pending = std::make_shared<Pending>();
    pending->recipe = recipe;
    pending->operation = std::make_shared<Operation>(recipe->shape);
  }
  pending->spans.clear();
  append_spans(pieces, recipe->collective, rank_ == recipe->root, -1, view_.world_size(),
               pending->spans);
  claim(pending->spans, [&] { return recipe->shape->words(); });
  claims_.add(pending);
  pending->started = Clock::now();
  if (recipe->widens) {
    std::vector<Piece> reduced;
    for (const Piece& piece : pieces) {
      reduced.push_back(Pending::needs_widening(piece) ? pending->widen_piece(piece) : piece);
    }
    pending->operation->restart(reduced);
  } else {
    pending->operation->restart(pieces);
  }
  if (norms != nullptr) pending->operation->measure(std::move(norms));
  executor_.start(pending->operation);
  throw_if_dead(lock);
  return pending;
}

void Session::Impl::remember(const Call& call, Pending& pending) {
  auto recipe = std::make_shared<Recipe>();
  recipe->collective = call.collective;
  recipe->root = call.root;
  recipe->name = call.name;
  recipe->pieces = call.pieces;
  recipe->widens = pending.widened();
  recipe->shape = pending.operation->shape();
  pending.recipe = recipe;
  recipes_.add(std::move(recipe));
}

void Session::Impl::run(Collective collective, const std::vector<Piece>& pieces, int root,
                        const std::string& name, Clock::time_point deadline,
                        const Interrupt& interrupt, std::shared_ptr<NormSums> norms) {
  require_same_process();
  require_memory(pieces);
  require_disjoint(pieces);
  Handle pending;
  {
    Lock lock(mutex_);
    throw_if_dead(lock);
    if (const auto recipe = recipes_.find(collective, root, name, pieces)) {
      pending = repeat(lock, recipe, pieces, norms);
    }
  }
  if (pending == nullptr) {
    Call call;
    call.collective = collective;
    call.pieces = pieces;
    call.root = root;
    call.name = name;
    call.norms = std::move(norms);
    pending = start(call);
    const std::lock_guard lock(mutex_);
    remember(call, *pending);
  }
  wait(pending, deadline, interrupt);
  const std::lock_guard lock(mutex_);
  claims_.drop(pending);
  // the executor lets go of an operation when it is done, so nobody else has it now
  if (pending->operation.use_count() != 1) return;
  if (spare_.size() == kMostSpares) spare_.erase(spare_.begin());
  spare_.push_back(std::move(pending));
}

}  // namespace kf
