#include "kf/error.h"

#include <gtest/gtest.h>

namespace kf {

TEST(Error, KeepsItsCodeAndText) {
  const Error error(ErrorCode::deadline, "rank 2 was waited for");
  EXPECT_EQ(error.code(), ErrorCode::deadline);
  EXPECT_STREQ(error.what(), "rank 2 was waited for");
  EXPECT_STREQ(error_class_name(error.code()), "DeadlineError");
}

}  // namespace kf
