"""Jobs that change a bucket while its writers run: plan -> units -> commit, here or in Spark (`runner`)."""
