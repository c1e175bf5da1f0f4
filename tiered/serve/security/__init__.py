"""Who may do what at the Kafka endpoint: TLS, authentication, ACLs, quotas and limits. Start with `security`.

`settings` reads the file that `--security` names. `session` is the state of one connection. `sasl` and `scram` are the
mechanisms, `acl` the rules, `quotas` the rates of principals, `admission` the limits on connections.
"""
