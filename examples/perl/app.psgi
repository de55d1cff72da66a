# Orders behind inboxd: Perl, DBI and PSGI.
#
# Debian: libdbd-pg-perl starman. To try it:
#   starman --listen 127.0.0.1:8080 --workers 8 app.psgi
use v5.32;
use warnings;
use DBI;
use JSON::PP qw(decode_json);

sub connection {
    my ($user, $password, $host, $port, $name, $options) =
        $ENV{DATABASE_URL} =~ m{^postgres(?:ql)?://([^:@]*)(?::([^@]*))?@([^:/]+)(?::(\d+))?/([^?]*)\??(.*)$}
        or die 'DATABASE_URL is no URL';
    s/%([0-9A-Fa-f]{2})/chr hex $1/ge for $user, $password //= '';
    my $more = join '', map { ";$_" } grep { /^sslmode=/ } split /&/, $options;
    # One connection for each worker, opened again after it broke.
    return DBI->connect_cached("dbi:Pg:dbname=$name;host=$host;port=" . ($port // 5432) . $more,
        $user, $password, { RaiseError => 1, PrintError => 0, AutoCommit => 1 });
}

# take_order commits the key and the order together; false: they were before.
sub take_order {
    my ($consumer, $key, $fingerprint, $order) = @_;
    my $db = connection();
    $db->begin_work;
    my $first = eval {
        my ($first) = $db->selectrow_array('select inbox_claim(?, ?, ?)', undef, $consumer, $key, $fingerprint);
        $db->do('insert into orders (order_id, customer, amount_cents) values (?, ?, ?)', undef,
            @$order{qw(order_id customer amount_cents)}) if $first;
        $db->commit;
        $first ? 1 : 0;
    };
    return ($first, '') if defined $first;    # only now it is committed
    my $state = $db->state;
    eval { $db->rollback };
    return (undef, $state);
}

sub message {
    my ($env) = @_;
    my $body = '';
    my $length = $env->{CONTENT_LENGTH} // 0;
    while (length $body < $length) {
        $env->{'psgi.input'}->read($body, $length - length $body, length $body) or last;
    }
    my $order = eval { decode_json($body) };
    my ($key, $consumer) = @$env{qw(HTTP_IDEMPOTENCY_KEY HTTP_INBOX_CONSUMER)};
    return 400    # this message will never do: it is parked
        if ref $order ne 'HASH' || !$key || !$consumer || grep { !defined $order->{$_} } qw(order_id customer amount_cents);
    my ($first, $state) = eval { take_order($consumer, $key, $env->{HTTP_INBOX_FINGERPRINT}, $order) };
    return (200, $first ? 'processed' : 'duplicate') if defined $first;
    return 422 if ($state // '') eq 'IB422';      # the key was used for another body
    return 400 if ($state // '') =~ /^2[23]/;     # the order's own data
    return 500;                                   # sent again later
}

sub {
    my ($env) = @_;
    my ($status, $outcome) =
          $env->{PATH_INFO} eq '/messages' && $env->{REQUEST_METHOD} eq 'POST' ? message($env)
        : $env->{PATH_INFO} eq '/healthz' ? 200
        :                                   404;
    return [$status, [$outcome ? ('Inbox-Outcome' => $outcome) : (), 'Content-Length' => 0], []];
};
