#include "kf/session.h"

#include <algorithm>

#include "kf/error.h"
#include "kf/generators.h"
#include "session/impl.h"

namespace kf {

Session::Impl::Impl(View view, int rank, std::unique_ptr<Transport> transport,
                    SessionOptions options)
    : view_(std::move(view)),
      rank_(rank),
      options_(std::move(options)),
      transport_(std::move(transport)),
      executor_(*transport_, rank, view_.world_size()) {
  set_schedule(options_.schedule);
  executor_.on_request = [this](int peer, const Frame& frame, std::string_view name) {
    on_request(peer, frame, name);
  };
}

Session::Impl::~Impl() {
  if (!guard_.same_process()) {
    // closing would hang up the connections of the process that this one was forked from, and
    // its thread does not exist here
    static_cast<void>(transport_.release());
    static_cast<void>(thread_.release());
  }
  close();
}

std::string Session::Impl::schedule() const {
  const std::lock_guard lock(mutex_);
  return options_.schedule;
}

void Session::Impl::set_schedule(const std::string& spec) {
  check_spec(spec, view_.world_size());
  const std::lock_guard lock(mutex_);
  options_.schedule = spec;
  recipes_.clear();
  spare_.clear();
}

SessionStats Session::Impl::stats() const {
  const std::lock_guard lock(mutex_);
  return executor_.stats();
}

void Session::Impl::require_same_process() const {
  if (guard_.same_process()) return;
  throw Error(ErrorCode::usage,
              "this session belongs to the process that this one was forked from; open another "
              "one here");
}

Session::Session(View view, int rank, std::unique_ptr<Transport> transport,
                 SessionOptions options) {
  if (rank < 0 || rank >= view.world_size()) {
    throw Error(ErrorCode::usage, "rank must be in [0, " + std::to_string(view.world_size()) +
                                      "), got " + std::to_string(rank));
  }
  if (options.eager_bytes < 0 || options.segment_bytes < 16 ||
      options.segment_bytes % 16 != 0) {
    throw Error(ErrorCode::usage,
                "eager_bytes must be >= 0 and segment_bytes a positive multiple of 16, got " +
                    std::to_string(options.eager_bytes) + " and " +
                    std::to_string(options.segment_bytes));
  }
  impl_ =
      std::make_unique<Impl>(std::move(view), rank, std::move(transport), std::move(options));
}

Session::~Session() = default;

const View& Session::view() const noexcept {
  return impl_->view();
}
int Session::rank() const noexcept {
  return impl_->rank();
}
int Session::world_size() const noexcept {
  return impl_->view().world_size();
}
const char* Session::transport() const noexcept {
  return impl_->transport();
}
std::string Session::schedule() const {
  return impl_->schedule();
}
void Session::set_schedule(const std::string& spec) {
  impl_->set_schedule(spec);
}

Session::Handle Session::start(Collective collective, std::vector<Piece> pieces, int root,
                               const std::string& name) {
  Call call;
  call.collective = collective;
  call.pieces = std::move(pieces);
  call.root = root;
  call.name = name;
  return impl_->start(std::move(call));
}

Session::Handle Session::start(Call call) {
  return impl_->start(std::move(call));
}

std::shared_ptr<const Group> Session::group(std::vector<int> members) {
  return impl_->group(std::move(members));
}

Session::Handle Session::send(int peer, std::int64_t tag, Call call) {
  return impl_->message(peer, true, tag, std::move(call));
}

Session::Handle Session::receive(int peer, std::int64_t tag, Call call) {
  return impl_->message(peer, false, tag, std::move(call));
}

std::pair<Clock::time_point, Clock::time_point> Session::times(const Handle& handle) {
  const Clock::time_point done = handle->operation->finished_at();
  return {handle->started, std::max(handle->started, done)};
}

void Session::save(const std::string& name, std::shared_ptr<const Model> model, int keep) {
  impl_->save(name, std::move(model), keep);
}

std::shared_ptr<const Model> Session::request(int peer, const std::string& name,
                                              std::int64_t version, Clock::time_point deadline,
                                              const Interrupt& interrupt) {
  return impl_->request(peer, name, version, deadline, interrupt);
}

void Session::wait(const Handle& handle, Clock::time_point deadline,
                   const Interrupt& interrupt) {
  impl_->wait(handle, deadline, interrupt);
}

bool Session::done(const Handle& handle) const {
  return impl_->done(handle);
}

void Session::run(Collective collective, const std::vector<Piece>& pieces, int root,
                  const std::string& name, Clock::time_point deadline,
                  const Interrupt& interrupt, std::shared_ptr<NormSums> norms) {
  impl_->run(collective, pieces, root, name, deadline, interrupt, std::move(norms));
}

SessionStats Session::stats() const {
  return impl_->stats();
}
void Session::close() noexcept {
  impl_->close();
}

}  // namespace kf
