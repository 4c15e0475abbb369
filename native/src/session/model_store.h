// Named, versioned copies of arrays that peers may ask for. No I/O.
//
// Threads: used under the session's lock; a Model never changes once it is in the store, so a
//        reader that holds one is not disturbed by newer versions.
// Ownership: the store and every reader share a model.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "kf/session.h"

namespace kf {

class ModelStore {
 public:
  // Throws Error{usage} unless the version is larger than that of the newest of this name.
  // Forgets the oldest until at most `keep` are left.
  void put(const std::string& name, std::shared_ptr<const Model> model, int keep);
  // The model of this version, or the newest for Model::kNewest; null: not here.
  std::shared_ptr<const Model> find(const std::string& name, std::int64_t version) const;
  // Whether the version may still come: it is newer than all that were put.
  bool may_come(const std::string& name, std::int64_t version) const;

 private:
  std::map<std::string, std::deque<std::shared_ptr<const Model>>> models_;  // by version
};

}  // namespace kf
